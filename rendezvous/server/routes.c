/* What is served over HTTP: one table of method, path and deed. "{id}" in a path stands for a name,
 * which may have slashes in it. Each path may also begin with /v1, the version of this interface
 * that stays as it is; without one it is the newest. */
#include <string.h>

#include "base/json.h"
#include "rendezvous/server/internal.h"
#include "rendezvous/server/pool.h"

static void serve_health(struct srv *s,
                         const struct srv_http_request *q,
                         struct mu_str name,
                         struct srv_http_answer *ret)
{
    (void)s;
    (void)q;
    (void)name;
    *ret = answer_text(200, NULL, "{\"status\":\"ok\"}\n");
}

/* The page sits in the module. */
static void page_serve(struct srv *s,
                       const struct srv_http_request *q,
                       struct mu_str name,
                       struct srv_http_answer *ret)
{
    (void)name;
    s->http->page(q, ret);
}

enum method {
    GET = 1, /* And HEAD. */
    POST = 2,
    PUT = 4,
    DELETE = 8
};

static const struct route {
    enum method method;
    const char *path;
    enum srv_deed deed;
    srv_serve_fn *serve;
} routes[] = {
    {GET, "/healthz", SRV_LIVES, serve_health},
    {GET, "/status", SRV_READS, status_serve},
    {GET, "/events", SRV_READS, events_serve},
    {GET, "/metrics", SRV_READS, metrics_serve},
    {GET, "/openapi.json", SRV_READS, openapi_serve},
    {GET, "/", SRV_LIVES, page_serve},
    {GET, "/page.css", SRV_LIVES, page_serve},
    {GET, "/page.js", SRV_LIVES, page_serve},
    {GET, "/jobs/{id}/incidents", SRV_READS, incidents_serve},
    {POST, "/nodes/{node}/drain", SRV_CHANGES, drain_serve},
    {GET, "/store", SRV_LOOKS, keys_serve_list},
    {GET, "/store/{key}", SRV_LOOKS, keys_serve_get},
    {PUT, "/store/{key}", SRV_CHANGES, keys_serve_put},
    {DELETE, "/store/{key}", SRV_CHANGES, keys_serve_delete},
    {POST, "/nodes/{node}/undrain", SRV_CHANGES, undrain_serve},
    {POST, "/jobs", SRV_CHANGES, jobs_submit_serve},
    {POST, "/jobs/{id}/stop", SRV_CHANGES, jobs_stop_serve},
    {POST, "/jobs/{id}/resume", SRV_CHANGES, jobs_resume_serve},
    {GET, "/jobs/{id}/logs", SRV_READS_OUTPUT, tail_serve},
    {GET, "/jobs/{id}", SRV_READS, jobs_get_serve}, /* Behind those that end as a name could. */
};

static const struct {
    const char *name;
    enum method method;
} methods[] = {{"GET", GET}, {"HEAD", GET}, {"POST", POST}, {"PUT", PUT}, {"DELETE", DELETE}};

/* By the methods that a path has. */
static const char *const allowed[] = {"",
                                      "GET, HEAD",
                                      "POST",
                                      "GET, HEAD, POST",
                                      "PUT",
                                      "GET, HEAD, PUT",
                                      "POST, PUT",
                                      "GET, HEAD, POST, PUT",
                                      "DELETE",
                                      "GET, HEAD, DELETE",
                                      "POST, DELETE",
                                      "GET, HEAD, POST, DELETE",
                                      "PUT, DELETE",
                                      "GET, HEAD, PUT, DELETE",
                                      "POST, PUT, DELETE",
                                      "GET, HEAD, POST, PUT, DELETE"};

static enum method method_of(const char *name)
{
    for (size_t i = 0; i < MU_COUNT(methods); i++)
        if (strcmp(methods[i].name, name) == 0)
            return methods[i].method;
    return 0;
}

static bool matches(const char *pattern, const char *path, struct mu_str *name)
{
    const char *open = strchr(pattern, '{');
    char head[64];
    *name = mu_str_of("", 0);
    if (open == NULL)
        return strcmp(pattern, path) == 0;
    size_t n = (size_t)(open - pattern);
    const char *tail = strchr(open, '}') + 1;
    MU_ASSERT(n < sizeof head);
    memcpy(head, pattern, n);
    head[n] = '\0';
    return path_between(path, head, tail, name);
}

static struct srv_http_answer no_such_page(void)
{
    struct mu_buf *b = answer_new();
    if (b != NULL) {
        struct mu_json w;
        mu_json_init(&w, b);
        mu_json_open(&w, '{');
        mu_json_kstr(&w, "error", "there is no such page");
        mu_json_key(&w, "paths");
        mu_json_open(&w, '[');
        for (size_t i = 0; i < MU_COUNT(routes); i++)
            if (i == 0 || strcmp(routes[i].path, routes[i - 1].path) != 0)
                mu_json_str(&w, routes[i].path);
        mu_json_close(&w, ']');
        mu_json_close(&w, '}');
        (void)mu_buf_adds(b, "\n");
    }
    return answer_body(404, b);
}

static struct srv_http_answer no_such_method(unsigned has)
{
    char text[96];
    (void)snprintf(text, sizeof text, "only %s is served here", allowed[has]);
    struct srv_http_answer a = answer_refusal(405, text);
    a.allow = allowed[has];
    return a;
}

bool routes_text(size_t i, char *ret, size_t cap, enum srv_deed *ret_deed)
{
    if (i >= MU_COUNT(routes))
        return false;
    const char *method = "";
    for (size_t k = 0; k < MU_COUNT(methods); k++)
        if (methods[k].method == routes[i].method && strcmp(methods[k].name, "HEAD") != 0)
            method = methods[k].name;
    (void)snprintf(ret, cap, "`%s %s`", method, routes[i].path);
    *ret_deed = routes[i].deed;
    return true;
}

static const char *without_version(const char *path)
{
    return strncmp(path, "/v1/", 4) == 0 ? path + 3 : path;
}

/* Returns the path as the table has it, or NULL. */
static const char *
serve(struct srv *s, const struct srv_http_request *q, struct srv_http_answer *ret)
{
    struct mu_str name;
    enum method method = method_of(q->method);
    const char *found = NULL;
    unsigned has = 0;
    for (size_t i = 0; i < MU_COUNT(routes); i++) {
        const struct route *r = &routes[i];
        if ((found != NULL && strcmp(r->path, found) != 0) || !matches(r->path, q->path, &name))
            continue; /* The first path that fits is the one, whatever its methods. */
        has |= (unsigned)r->method;
        found = r->path;
        if (r->method != method)
            continue;
        const char *why = NULL;
        unsigned status = srv_forbids(s, q, r->deed, &why);
        if (status == 0)
            r->serve(s, q, name, ret);
        else
            *ret = answer_refusal(status, why);
        if (status == 401)
            ret->challenge = "Bearer realm=\"muster\"";
        return found;
    }
    *ret = has != 0 ? no_such_method(has) : no_such_page();
    return found;
}

void routes_respond(void *arg, const struct srv_http_request *asked, struct srv_http_answer *ret)
{
    struct srv *s = arg;
    struct srv_http_request q = *asked;
    q.path = without_version(q.path);
    const char *path = serve(s, &q, ret);
    metrics_request(s, path != NULL ? path : "other", ret->status);
}
