#include "launcher/hosts_plan.h"

#include <errno.h>
#include <string.h>

#include "base/parse.h"
#include "launcher/agent_flags.h"

/* --- hosts --- */

#define BETWEEN " \t\r"

static int add_host(struct cli_hosts *h, const struct cli_host *host, struct mu_err *err)
{
    for (uint32_t i = 0; i < h->count; i++)
        if (strcmp(h->host[i].name, host->name) == 0)
            return mu_err_set(err, -EINVAL, "host %.120s is named twice: one agent runs on each",
                              host->name);
    if (h->count == CLI_HOSTS_MAX)
        return mu_err_set(err, -EINVAL,
                          "more than %d hosts: let the node-agents run as services, which muster "
                          "run asks through an rdzv-server",
                          CLI_HOSTS_MAX);
    struct cli_host *grown = mu_realloc(h->mem, h->host, (h->count + 1) * sizeof *grown);
    if (grown == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the hosts");
    h->host = grown;
    h->host[h->count++] = *host;
    return 0;
}

/* "user@n1", "n1:8", "[fd00::1]:8" */
static int read_name(struct cli_host *host, const char *word, struct mu_err *err)
{
    char shown[80];
    const char *at = strrchr(word, '@');
    const char *name = at != NULL ? at + 1 : word;
    const char *end = name + strlen(name);
    bool v6 = name[0] == '[';
    const char *close = v6 ? strchr(name, ']') : NULL;
    const char *colon =
        v6 ? (close != NULL && close[1] == ':' ? close + 1 : NULL) : strchr(name, ':');
    (void)mu_quote(shown, sizeof shown, mu_str_of(word, strlen(word)));
    if (!v6 && colon != NULL && strchr(colon + 1, ':') != NULL)
        colon = NULL; /* A bare IPv6 address. */
    if (colon != NULL &&
        mu_parse_u32(colon + 1, 1, UINT32_MAX, "the workers of a host", &host->slots, err) < 0)
        return mu_err_wrap(err, "host %s", shown);
    end = colon != NULL ? colon : end;
    size_t user = (size_t)(name - word);
    name += v6;
    size_t n = (size_t)((v6 && close != NULL ? close : end) - name);
    if (n == 0 || n >= sizeof host->name || user + n >= sizeof host->ssh || word[0] == '-' ||
        name[0] == '-' || (v6 && close == NULL))
        return mu_err_set(err, -EINVAL, "host %s: that is no host: HOST, USER@HOST or HOST:WORKERS",
                          shown);
    memcpy(host->ssh, word, user);
    memcpy(host->ssh + user, name, n);
    host->ssh[user + n] = '\0';
    memcpy(host->name, name, n);
    host->name[n] = '\0';
    return 0;
}

/* One host and what stands behind it. */
static int take_entry(struct cli_hosts *h, char *text, struct mu_err *err)
{
    struct cli_host host = {.slots = 0};
    char *word = text + strspn(text, BETWEEN);
    size_t n = strcspn(word, BETWEEN);
    char *rest = word + n + strspn(word + n, BETWEEN);
    char shown[64];
    word[n] = '\0';
    if (n == 0)
        return 0;
    if (read_name(&host, word, err) < 0)
        return err->code;
    while (*rest != '\0') {
        size_t length = strcspn(rest, BETWEEN);
        char *next = rest + length + strspn(rest + length, BETWEEN);
        rest[length] = '\0';
        if (strncmp(rest, "slots=", 6) != 0)
            return mu_err_set(err, -EINVAL, "host %.100s: %s is not slots=N", host.name,
                              mu_quote(shown, sizeof shown, mu_str_of(rest, strlen(rest))));
        if (mu_parse_u32(rest + 6, 1, UINT32_MAX, "slots", &host.slots, err) < 0)
            return mu_err_wrap(err, "host %.100s", host.name);
        rest = next;
    }
    return add_host(h, &host, err);
}

int cli_hosts_parse(struct cli_hosts *h, const char *text, bool is_file, struct mu_err *err)
{
    char *copy = mu_strdup(h->mem, text);
    const char *divider = is_file ? "\n" : ",";
    int r = copy != NULL ? 0 : mu_err_set(err, -ENOMEM, "no memory for the hosts");
    for (char *p = copy; p != NULL && r == 0;) {
        size_t n = strcspn(p, divider);
        char *next = p[n] != '\0' ? p + n + 1 : NULL;
        p[n] = '\0';
        if (is_file)
            p[strcspn(p, "#")] = '\0';
        r = take_entry(h, p, err);
        p = next;
    }
    mu_mem_free(h->mem, copy);
    if (r == 0 && h->count == 0)
        r = mu_err_set(err, -EINVAL, "no host is named: %s",
                       is_file ? "the file has one a line" : "--hosts n1,n2");
    return r;
}

void cli_hosts_fini(struct cli_hosts *h)
{
    mu_mem_free(h->mem, h->host);
    h->host = NULL;
    h->count = 0;
}

int cli_hosts_nodes(const struct cli_hosts *h,
                    const struct cli_run *run,
                    uint32_t *ret_min,
                    uint32_t *ret_max,
                    struct mu_err *err)
{
    *ret_min = h->count;
    *ret_max = h->count;
    if (run->nnodes == NULL)
        return 0;
    *ret_min = run->nodes_min;
    *ret_max = run->nodes_max;
    if (*ret_min > h->count)
        return mu_err_set(err, -EINVAL, "--nnodes=%.40s: only %u host%s named", run->nnodes,
                          h->count, h->count == 1 ? " is" : "s are");
    return 0;
}

/* --- the script --- */

const char cli_host_command[] = "exec sh -c 'IFS= read -r s && eval \"$(printf %b \"$s\")\"'";

#define NS_PER_S INT64_C(1000000000)
#define STOP_MARGIN_S 10                /* Beyond the agent's own limit. */
#define STOP_DEFAULT_NS (30 * NS_PER_S) /* --shutdown-timeout, where it is not given. */

void cli_add_shell_word(struct mu_buf *b, const char *word)
{
    (void)mu_buf_adds(b, "'");
    for (; *word != '\0'; word++)
        if (*word == '\'')
            (void)mu_buf_adds(b, "'\\''");
        else
            (void)mu_buf_add(b, word, 1);
    (void)mu_buf_adds(b, "'");
}

static void add_word(struct mu_buf *b, const char *word)
{
    (void)mu_buf_adds(b, " ");
    cli_add_shell_word(b, word);
}

static int add_environment(struct mu_buf *b, const struct cli_submission *s, struct mu_err *err)
{
    struct mu_buf name;
    int r = 0;
    mu_buf_init(&name, b->mem);
    for (uint32_t i = 0; i < s->run->env_count && r == 0; i++) {
        const char *value = NULL;
        r = cli_env_read(s, s->run->env[i], &name, &value, err);
        if (r < 0)
            break;
        (void)mu_buf_addf(b, "export %s=", mu_buf_cstr(&name));
        cli_add_shell_word(b, value);
        (void)mu_buf_adds(b, "\n");
    }
    mu_buf_fini(&name);
    return r;
}

static const struct cli_agent_arg *agent_arg(const struct cli_run *run, const char *flag)
{
    for (uint32_t i = 0; i < run->agent_arg_count; i++)
        if (strcmp(run->agent_args[i].flag, flag) == 0)
            return &run->agent_args[i];
    return NULL;
}

static void add_agent_args(struct mu_buf *b, const struct cli_run *run)
{
    struct mu_buf word;
    mu_buf_init(&word, b->mem);
    for (uint32_t i = 0; i < run->agent_arg_count; i++) {
        mu_buf_reset(&word);
        cli_add_agent_arg(&word, &run->agent_args[i]);
        add_word(b, mu_buf_cstr(&word));
    }
    b->oom = b->oom || word.oom;
    mu_buf_fini(&word);
}

static void add_agent(struct mu_buf *b, const struct cli_hosts_plan *p, uint32_t index)
{
    const struct cli_run *run = p->submission.run;
    uint32_t slots = p->hosts->host[index].slots;
    cli_add_shell_word(b, run->agent != NULL ? run->agent : "node-agent");
    (void)mu_buf_adds(b, " --surroundings=none --rdzv=");
    cli_add_shell_word(b, p->rdzv);
    (void)mu_buf_adds(b, " --rdzv-id=");
    cli_add_shell_word(b, p->run_id);
    if (p->token_file != NULL) {
        (void)mu_buf_adds(b, " --token-file=");
        cli_add_shell_word(b, p->token_file);
    }
    (void)mu_buf_addf(b, " --nnodes=%u:%u", p->nodes_min, p->nodes_max);
    if (run->nproc != NULL)
        (void)mu_buf_addf(b, " --nproc-per-node=%s", run->nproc);
    else if (slots > 0)
        (void)mu_buf_addf(b, " --nproc-per-node=%u", slots);
    if (p->nodes_min == p->hosts->count && p->nodes_max == p->hosts->count)
        (void)mu_buf_addf(b, " --node-rank=%u", index);
    if (agent_arg(run, "exit-status") == NULL)
        (void)mu_buf_adds(b, " --exit-status=first");
    if (agent_arg(run, "label") == NULL)
        (void)mu_buf_adds(b, " --label");
    add_agent_args(b, run);
    for (uint32_t i = 0; i < run->argc; i++)
        add_word(b, run->argv[i]);
}

/* Bytes that need no escape, neither from `read` nor from printf %b. */
static bool is_safe(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("-_./=:,+@", c) != NULL;
}

static void encode(struct mu_buf *line, const struct mu_buf *script)
{
    for (size_t i = 0; i < script->n; i++)
        if (is_safe(script->p[i]) && script->p[i] != '\0')
            (void)mu_buf_add(line, &script->p[i], 1);
        else
            (void)mu_buf_addf(line, "\\0%03o", (unsigned)(unsigned char)script->p[i]);
    (void)mu_buf_adds(line, "\n");
}

int cli_host_script(struct mu_buf *line,
                    const struct cli_hosts_plan *p,
                    uint32_t index,
                    struct mu_err *err)
{
    const struct cli_run *run = p->submission.run;
    const struct cli_agent_arg *limit = agent_arg(run, "shutdown-timeout");
    int64_t limit_ns = STOP_DEFAULT_NS;
    if (limit != NULL &&
        mu_parse_seconds(limit->value, 0, INT64_C(86400) * NS_PER_S, "", &limit_ns, NULL) < 0)
        limit_ns = STOP_DEFAULT_NS; /* node-agent says what is wrong with it. */
    struct mu_buf b;
    mu_buf_init(&b, line->mem);
    (void)mu_buf_adds(&b, "exec 3<&0 </dev/null\ncd");
    add_word(&b, run->cwd != NULL ? run->cwd : p->submission.cwd);
    (void)mu_buf_adds(&b,
                      " || exit 1\nexport TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${rank}] '\n");
    int r = add_environment(&b, &p->submission, err);
    add_agent(&b, p, index);
    (void)mu_buf_adds(&b, " 3<&- &\nagent=$!\n"
                          "{ while IFS= read -r s; do kill -s \"$s\" $agent; done\n"
                          "kill -s TERM $agent\ni=0\n");
    (void)mu_buf_addf(&b, "while kill -s 0 $agent && [ $i -lt %d ]; do sleep 1; i=$((i+1)); done\n",
                      (int)(limit_ns / NS_PER_S) + STOP_MARGIN_S);
    (void)mu_buf_adds(&b, "kill -s KILL $agent; } <&3 >/dev/null 2>&1 &\nwatch=$!\nexec 3<&-\n"
                          "wait $agent\nstatus=$?\nkill $watch\nexit $status");
    encode(line, &b);
    if (r == 0 && (b.oom || line->oom))
        r = mu_err_set(err, -ENOMEM, "no memory for the agents' command lines");
    mu_buf_fini(&b);
    return r;
}
