/* GET /, /page.css and /page.js. What jobs, hosts and workers are called, and what they wrote,
 * comes from strangers and is shown on this page; so the browser is told to run no script, load no
 * style and ask no address but this server's own, and to make no markup of texts (trusted types).
 */
#include "rendezvous/server/page.h"

#include <stdbool.h>
#include <string.h>

#include <rendezvous/server/page_data.h> /* Made by embed.cmake. */

#include "base/check.h"

#define POLICY                                                                                     \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "                                \
    "require-trusted-types-for 'script'; trusted-types 'none'"

/* no-cache: kept, and asked for by its tag each time, so that an upgraded server shows its own. */
#define FIELDS(tag)                                                                                \
    {                                                                                              \
        {"ETag", (tag)}, {"Cache-Control", "no-cache"}, {"Content-Security-Policy", POLICY},       \
            {"X-Frame-Options", "DENY"}, {"Referrer-Policy", "no-referrer"}, {NULL, NULL},         \
    }

static const struct page_file {
    const char *path;
    const char *content_type;
    const unsigned char *body;
    size_t body_bytes;
    struct srv_http_field fields[6]; /* The tag first. */
} files[] = {
    {"/", "text/html; charset=utf-8", index_html, sizeof index_html, FIELDS(INDEX_HTML_TAG)},
    {"/page.css", "text/css; charset=utf-8", page_css, sizeof page_css, FIELDS(PAGE_CSS_TAG)},
    {"/page.js", "text/javascript; charset=utf-8", page_js, sizeof page_js, FIELDS(PAGE_JS_TAG)},
};

/* Tags are hashes: one that stands anywhere in the list is this one, weak ("W/") or not. */
static bool has_it(const struct srv_http_request *q, const char *tag)
{
    return strstr(q->if_none_match, tag) != NULL || strcmp(q->if_none_match, "*") == 0;
}

void page_respond(const struct srv_http_request *q, struct srv_http_answer *ret)
{
    const struct page_file *f = files;
    while (f < files + MU_COUNT(files) - 1 && strcmp(f->path, q->path) != 0)
        f++;
    bool known = has_it(q, f->fields[0].value);
    *ret = (struct srv_http_answer){.status = known ? 304 : 200,
                                    .content_type = f->content_type,
                                    .fields = f->fields,
                                    .body = f->body,
                                    .body_bytes = known ? 0 : f->body_bytes};
}
