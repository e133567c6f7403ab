#include "launcher/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cJSON.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/shown.h"
#include "launcher/answer.h"
#include "launcher/http.h"
#include "launcher/table.h"

#define VALUE_BYTES_MAX (1U << 20) /* As a request's body. */

static void cjsonp(cJSON **j)
{
    cJSON_Delete(*j);
}

struct asking {
    const struct cli_options *o;
    struct cli_http *http;
    struct mu_buf path;
    struct mu_buf body;
    long status;
};

static int put(const char *p, size_t n, struct mu_err *err)
{
    bool good = fwrite(p, 1, n, stdout) == n && fflush(stdout) == 0;
    return good ? 0 : mu_err_set(err, -EIO, "standard output takes no more: %s", strerror(errno));
}

/* Where the answer is not what was hoped for: the server's own sentence. */
static int refused(const struct asking *a, struct mu_err *err)
{
    MU_CLEANUP(cjsonp) cJSON *answer = cJSON_ParseWithLength(a->body.p, a->body.n);
    const char *error = cli_text(answer, "error");
    if (a->status == 401 && error[0] != '\0')
        return cli_http_unauthorized(a->http, err);
    return mu_err_set(
        err, -EPROTO, "%s: %.180s", cli_http_where(a->http),
        error[0] != '\0' ? error : "it does not answer as an rdzv-server that knows this does");
}

static int ask(struct asking *a, const char *method, struct mu_str request, struct mu_err *err)
{
    if (a->path.oom)
        return mu_err_set(err, -ENOMEM, "no memory for the request");
    int r = cli_http_octets(a->http, method, mu_buf_cstr(&a->path), request, a->o->timeout_ns,
                            &a->body, &a->status, err);
    return r < 0 ? r : a->status == 200 ? 0 : refused(a, err);
}

/* --- get --- */

static void add_base64(struct mu_buf *b, struct mu_str v)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < v.n; i += 3) {
        uint32_t w = (uint32_t)(unsigned char)v.p[i] << 16;
        w |= i + 1 < v.n ? (uint32_t)(unsigned char)v.p[i + 1] << 8 : 0;
        w |= i + 2 < v.n ? (uint32_t)(unsigned char)v.p[i + 2] : 0;
        char four[4] = {digits[w >> 18], digits[w >> 12 & 63],
                        i + 1 < v.n ? digits[w >> 6 & 63] : '=',
                        i + 2 < v.n ? digits[w & 63] : '='};
        (void)mu_buf_add(b, four, sizeof four);
    }
}

static bool is_text(struct mu_str v)
{
    size_t n = 0;
    for (size_t i = 0; i < v.n; i += n) {
        n = mu_utf8_len(v.p + i, v.n - i);
        if (n == 0)
            return false;
    }
    return true;
}

static void value_as_json(struct mu_buf *out, const char *key, struct mu_str v)
{
    struct mu_json w;
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    add_base64(&b, v);
    mu_json_init(&w, out);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "key", key);
    mu_json_ki64(&w, "bytes", (int64_t)v.n);
    mu_json_key(&w, "text");
    if (is_text(v))
        mu_json_strn(&w, v);
    else
        mu_json_null(&w);
    mu_json_key(&w, "base64");
    mu_json_strn(&w, mu_str_of(b.p, b.n));
    mu_json_close(&w, '}');
    (void)mu_buf_adds(out, "\n");
    out->oom = out->oom || b.oom;
}

static int get(struct asking *a, struct mu_err *err)
{
    int r = ask(a, "GET", mu_str_of(NULL, 0), err);
    struct mu_str v = mu_str_of(a->body.p, a->body.n);
    MU_CLEANUP(mu_buf_fini) struct mu_buf shown;
    mu_buf_init(&shown, mu_mem_default());
    if (r < 0)
        return r;
    if (a->o->json)
        value_as_json(&shown, a->o->words[1], v);
    else if (isatty(STDOUT_FILENO) == 1) { /* It obeys what a worker has written. */
        (void)mu_buf_add_shown(&shown, v, "\n\t");
        if (v.n > 0 && v.p[v.n - 1] != '\n')
            (void)mu_buf_adds(&shown, "\n");
    } else
        return put(v.p, v.n, err);
    return shown.oom ? mu_err_set(err, -ENOMEM, "no memory for the value")
                     : put(shown.p, shown.n, err);
}

/* --- the others --- */

static int read_stdin(struct mu_buf *b, struct mu_err *err)
{
    for (;;) {
        if (mu_buf_reserve(b, 65536) < 0)
            return mu_err_set(err, -ENOMEM, "no memory for standard input");
        size_t n = fread(b->p + b->n, 1, 65536, stdin);
        b->n += n;
        if (b->n > VALUE_BYTES_MAX)
            return mu_err_set(err, -EMSGSIZE,
                              "standard input has more than 1 MiB, which is what a value may have "
                              "over HTTP: workers may set larger ones");
        if (ferror(stdin))
            return mu_err_set(err, -EIO, "standard input: %s", strerror(errno));
        if (n == 0)
            return 0;
    }
}

static int set(struct asking *a, struct mu_err *err)
{
    const char *value = a->o->words[2];
    MU_CLEANUP(mu_buf_fini) struct mu_buf in;
    mu_buf_init(&in, mu_mem_default());
    bool from_stdin = strcmp(value, "-") == 0;
    int r = from_stdin ? read_stdin(&in, err) : 0;
    if (r == 0)
        r = ask(a, "PUT", from_stdin ? mu_str_of(in.p, in.n) : mu_str_of(value, strlen(value)),
                err);
    return r < 0 || !a->o->json ? r : put(a->body.p, a->body.n, err);
}

static int del(struct asking *a, struct mu_err *err)
{
    int r = ask(a, "DELETE", mu_str_of(NULL, 0), err);
    return r < 0 || !a->o->json ? r : put(a->body.p, a->body.n, err);
}

static void draw(struct mu_buf *out, const cJSON *answer)
{
    static const char *const heads[] = {"KEY", "BYTES", "QUEUED"};
    static const struct cli_style style = {0};
    const cJSON *e = NULL;
    struct cli_table *t = cli_table_new(out->mem, heads, MU_COUNT(heads));
    if (t == NULL) {
        out->oom = true;
        return;
    }
    cJSON_ArrayForEach(e, cli_list(answer, "keys"))
    {
        int64_t bytes = cli_number(e, "bytes", -1);
        int64_t queued = cli_number(e, "queued", 0);
        cli_cell(t, CLI_PLAIN, cli_text(e, "key"));
        cli_cellf(t, CLI_PLAIN, bytes >= 0 ? "%lld" : "", (long long)bytes);
        cli_cellf(t, CLI_PLAIN, queued > 0 ? "%lld" : "", (long long)queued);
    }
    cli_table_draw(t, &style, 0, out);
    if (cli_number(answer, "left_out", 0) > 0)
        (void)mu_buf_addf(out, "%lld more: a PREFIX shows fewer\n",
                          (long long)cli_number(answer, "left_out", 0));
    cli_table_free(t);
}

static int keys(struct asking *a, struct mu_err *err)
{
    int r = ask(a, "GET", mu_str_of(NULL, 0), err);
    if (r < 0)
        return r;
    if (a->o->json)
        return put(a->body.p, a->body.n, err);
    MU_CLEANUP(cjsonp) cJSON *answer = cJSON_ParseWithLength(a->body.p, a->body.n);
    MU_CLEANUP(mu_buf_fini) struct mu_buf out;
    mu_buf_init(&out, mu_mem_default());
    if (cli_number(answer, "count", -1) < 0)
        return refused(a, err);
    if (cli_number(answer, "count", 0) == 0)
        (void)mu_buf_adds(&out, "no keys\n");
    else
        draw(&out, answer);
    return out.oom ? mu_err_set(err, -ENOMEM, "no memory for the list") : put(out.p, out.n, err);
}

int cli_store(const struct cli_options *o)
{
    static const struct {
        const char *word;
        int (*run)(struct asking *a, struct mu_err *err);
    } runs[] = {{"get", get}, {"set", set}, {"keys", keys}, {"del", del}};
    struct mu_err err = {0};
    struct asking a = {.o = o, .http = cli_http_new(o, &err)};
    bool lists = strcmp(o->words[0], "keys") == 0;
    int r = a.http != NULL ? 0 : err.code;
    mu_buf_init(&a.path, mu_mem_default());
    mu_buf_init(&a.body, mu_mem_default());
    (void)mu_buf_adds(&a.path, !lists              ? "/v1/store/"
                               : o->word_count > 1 ? "/v1/store?prefix="
                                                   : "/v1/store");
    if (r == 0 && o->word_count > 1)
        cli_http_escape(a.http, &a.path, o->words[1]);
    for (size_t i = 0; i < MU_COUNT(runs) && r == 0; i++)
        if (strcmp(runs[i].word, o->words[0]) == 0)
            r = runs[i].run(&a, &err);
    mu_clean(err.msg); /* The server's words. */
    if (r < 0)
        (void)fprintf(stderr, "muster store: %s\n", err.msg);
    mu_buf_fini(&a.path);
    mu_buf_fini(&a.body);
    cli_http_free(a.http);
    return r < 0 ? 1 : 0;
}
