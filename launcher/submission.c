#include "launcher/submission.h"

#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/parse.h"
#include "launcher/agent_flags.h"

int cli_env_read(const struct cli_submission *s,
                 const char *text,
                 struct mu_buf *name,
                 const char **ret_value,
                 struct mu_err *err)
{
    size_t n = strcspn(text, "=");
    mu_buf_reset(name);
    if (mu_buf_add(name, text, n) < 0)
        return mu_err_set(err, -ENOMEM, "no memory for the environment");
    *ret_value = text[n] == '=' ? text + n + 1 : s->env(s->env_arg, mu_buf_cstr(name));
    if (*ret_value == NULL)
        return mu_err_set(err, -EINVAL,
                          "--env=%.60s: it is not set here; --env=%.60s=VALUE says it",
                          mu_buf_cstr(name), mu_buf_cstr(name));
    return 0;
}

/* JSON would put U+FFFD in the place of other bytes, and the program would get that. */
static int check_text(const char *text, const char *what, struct mu_err *err)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        size_t len = mu_utf8_len(text + i, n - i);
        if (len == 0)
            return mu_err_set(
                err, -EINVAL,
                "%s is no UTF-8, which is all that a submission can carry: put it into "
                "a file, or use --hosts",
                what);
        i += len;
    }
    return 0;
}

static int check_texts(const struct cli_submission *s, struct mu_err *err)
{
    int r = check_text(s->run->cwd != NULL ? s->run->cwd : s->cwd, "the folder's name", err);
    for (uint32_t i = 0; i < s->run->argc && r == 0; i++)
        r = check_text(s->run->argv[i], "an argument of the program", err);
    for (uint32_t i = 0; i < s->run->agent_arg_count && r == 0; i++)
        r = s->run->agent_args[i].value == NULL
                ? 0
                : check_text(s->run->agent_args[i].value, "a flag's value", err);
    return r;
}

static int add_env(struct mu_json *w, const struct cli_submission *s, struct mu_err *err)
{
    struct mu_buf name;
    int r = 0;
    mu_buf_init(&name, w->buf->mem);
    mu_json_key(w, "env");
    mu_json_open(w, '{');
    for (uint32_t i = 0; i < s->run->env_count && r == 0; i++) {
        const char *value = NULL;
        r = cli_env_read(s, s->run->env[i], &name, &value, err);
        if (r == 0)
            r = check_text(value, "a variable's value", err);
        if (r == 0)
            mu_json_kstr(w, mu_buf_cstr(&name), value);
    }
    mu_json_close(w, '}');
    mu_buf_fini(&name);
    return r;
}

static void add_texts(struct mu_json *w, const char *key, const char *const *texts, uint32_t count)
{
    mu_json_key(w, key);
    mu_json_open(w, '[');
    for (uint32_t i = 0; i < count; i++)
        mu_json_str(w, texts[i]);
    mu_json_close(w, ']');
}

static void add_agent_args(struct mu_json *w, const struct cli_run *run)
{
    struct mu_buf word;
    mu_buf_init(&word, w->buf->mem);
    mu_json_key(w, "agent_args");
    mu_json_open(w, '[');
    for (uint32_t i = 0; i < run->agent_arg_count; i++) {
        mu_buf_reset(&word);
        cli_add_agent_arg(&word, &run->agent_args[i]);
        mu_json_str(w, mu_buf_cstr(&word));
    }
    mu_json_close(w, ']');
    w->buf->oom = w->buf->oom || word.oom;
    mu_buf_fini(&word);
}

int cli_submission(struct mu_buf *b, const struct cli_submission *s, struct mu_err *err)
{
    const struct cli_run *run = s->run;
    struct mu_json w;
    uint32_t nproc = 1;
    if (run->nproc != NULL &&
        mu_parse_u32(run->nproc, 1, UINT32_MAX, "--nproc-per-node", &nproc, err) < 0)
        return err->code;
    int r = check_texts(s, err);
    mu_json_init(&w, b);
    mu_json_open(&w, '{');
    add_texts(&w, "argv", (const char *const *)run->argv, run->argc);
    mu_json_kstr(&w, "cwd", run->cwd != NULL ? run->cwd : s->cwd);
    if (r == 0)
        r = add_env(&w, s, err);
    mu_json_kstr(&w, "nnodes", run->nnodes != NULL ? run->nnodes : "1");
    mu_json_ki64(&w, "nproc_per_node", nproc);
    if (run->gpus >= 0)
        mu_json_ki64(&w, "gpus_per_node", run->gpus);
    if (run->name != NULL)
        mu_json_kstr(&w, "name", run->name);
    add_agent_args(&w, run);
    if (run->no_requeue)
        mu_json_kbool(&w, "requeue", false);
    mu_json_kstr(&w, "submitter", s->submitter);
    mu_json_close(&w, '}');
    if (r == 0 && b->oom)
        return mu_err_set(err, -ENOMEM, "no memory for the submission");
    return r;
}
