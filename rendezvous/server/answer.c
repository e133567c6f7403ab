/* HTTP answers, as JSON: a text that stays for ever, or a body of their own. */
#include <string.h>

#include "base/json.h"
#include "rendezvous/server/internal.h"

struct srv_http_answer answer_text(unsigned status, const char *allow, const char *text)
{
    return (struct srv_http_answer){.status = status,
                                    .content_type = SRV_JSON_TYPE,
                                    .allow = allow,
                                    .body = text,
                                    .body_bytes = strlen(text)};
}

struct mu_buf *answer_new(void)
{
    struct mu_buf *b = mu_zalloc(mu_mem_default(), sizeof *b);
    if (b != NULL)
        mu_buf_init(b, mu_mem_default());
    return b;
}

void answer_free(void *body)
{
    if (body == NULL)
        return;
    mu_buf_fini(body);
    mu_mem_free(mu_mem_default(), body);
}

struct srv_http_answer answer_body(unsigned status, struct mu_buf *b)
{
    if (b == NULL || b->oom) {
        answer_free(b);
        return answer_text(500, NULL, "{\"error\":\"no memory for the answer\"}\n");
    }
    return answer_owned(status, mu_str_of(b->p, b->n), answer_free, b);
}

struct srv_http_answer
answer_owned(unsigned status, struct mu_str text, void (*release)(void *arg), void *arg)
{
    return (struct srv_http_answer){.status = status,
                                    .content_type = SRV_JSON_TYPE,
                                    .body = text.p,
                                    .body_bytes = text.n,
                                    .release = release,
                                    .release_arg = arg};
}

struct srv_http_answer answer_refusal(unsigned status, const char *sentence)
{
    struct mu_buf *b = answer_new();
    if (b != NULL) {
        (void)mu_buf_adds(b, "{\"error\":");
        mu_json_quoted(b, sentence);
        (void)mu_buf_adds(b, "}\n");
    }
    return answer_body(status, b);
}

bool path_between(const char *path, const char *head, const char *tail, struct mu_str *ret)
{
    size_t n = strlen(path);
    size_t before = strlen(head);
    size_t behind = strlen(tail);
    if (n <= before + behind || strncmp(path, head, before) != 0 ||
        strcmp(path + n - behind, tail) != 0)
        return false;
    *ret = mu_str_of(path + before, n - before - behind);
    return true;
}
