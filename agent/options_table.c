/* The table of flags, and what the text of each means. torchrun's rows come first, in its own
 * order; ours follow. */
#include "agent/options_table.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <strings.h>

#include "agent/life/hang.h"
#include "agent/notice_read.h"
#include "base/cause.h"

#define NS_PER_S INT64_C(1000000000)
#define YEAR_NS MU_SPAN_MAX_NS

/* --- readers: one per row --- */

static int set_nnodes(struct reading *rd, const char *text, const char *what)
{
    char min_text[32];
    char shown[64];
    const char *colon = strchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : strlen(text);
    int64_t min = 0;
    int64_t max = 0;
    (void)mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text)));
    if (n >= sizeof min_text || (colon != NULL && strchr(colon + 1, ':') != NULL))
        return option_fail(rd, 1, "%s: %s is not N or MIN:MAX", what, shown);
    memcpy(min_text, text, n);
    min_text[n] = '\0';
    int r = option_int(rd, 1, min_text, 1, MU_NODES_MAX, what, &min);
    if (r == 0)
        r = option_int(rd, 1, colon != NULL ? colon + 1 : min_text, 1, MU_NODES_MAX, what, &max);
    if (r < 0)
        return r;
    if (min > max)
        return option_fail(rd, 1, "%s: %s: the first number may not be greater than the second",
                           what, shown);
    rd->o->nodes_min = (uint32_t)min;
    rd->o->nodes_max = (uint32_t)max;
    return 0;
}

static int set_nproc(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->nproc = text;
    return 0;
}

static int set_backend(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->backend = text;
    return 0;
}

static int set_endpoint(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->endpoint = text;
    return 0;
}

static int set_run_id(struct reading *rd, const char *text, const char *what)
{
    if (strlen(text) >= MU_RUN_ID_BYTES)
        return option_fail(rd, 1, "%s is longer than %d characters", what, MU_RUN_ID_BYTES - 1);
    rd->run_id = text;
    return 0;
}

static int set_conf(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->conf = text;
    return 0;
}

static int set_standalone(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->standalone = true;
    return 0;
}

/* A time with its unit, to the millisecond. */
static int span(struct reading *rd, const char *text, const char *what, int64_t *ret_ns)
{
    int r = mu_parse_span(text, NS_PER_S / 1000, MU_SPAN_MAX_NS, what, ret_ns, rd->err);
    return r == 0 ? 0 : option_fail_as(rd, r == -ERANGE ? 1 : 2);
}

/* N, or N/WINDOW. */
static int set_max_restarts(struct reading *rd, const char *text, const char *what)
{
    char number[32] = "";
    char shown[64];
    const char *slash = strchr(text, '/');
    int64_t n = 0;
    int64_t window_ns = 0;
    if (slash != NULL && (size_t)(slash - text) < sizeof number)
        memcpy(number, text, (size_t)(slash - text));
    if (slash != NULL && (number[0] == '\0' || slash[1] == '\0'))
        return option_fail(rd, 2, "%s: %s is not N or N/WINDOW (as in 3 or 3/1h)", what,
                           mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
    int r = option_int(rd, 2, slash != NULL ? number : text, 0,
                       slash != NULL ? MU_WINDOW_RESTARTS_MAX : MU_RESTARTS_MAX, what, &n);
    if (r == 0 && slash != NULL)
        r = span(rd, slash + 1, what, &window_ns);
    if (r < 0)
        return r;
    rd->o->max_restarts = (uint32_t)n;
    rd->o->restart_window_ns = window_ns;
    return 0;
}

#define STEPS "steps"

static int set_given_back(struct reading *rd, const char *text, const char *what)
{
    char number[32] = "";
    char shown[64];
    size_t n = strlen(text);
    size_t unit = sizeof STEPS - 1;
    int64_t steps = 0;
    int64_t ns = 0;
    int r = 0;
    bool in_steps = n > unit && n - unit < sizeof number && strcmp(text + n - unit, STEPS) == 0;
    if (in_steps) {
        memcpy(number, text, n - unit);
        r = option_int(rd, 2, number, 1, INT32_MAX, what, &steps);
    } else if (strcmp(text, "never") != 0) {
        r = mu_parse_span(text, NS_PER_S / 1000, MU_SPAN_MAX_NS, what, &ns, rd->err);
        if (r == -EINVAL)
            return option_fail(rd, 2,
                               "%s: %s is neither a time with its unit (as in 30m), nor steps (as "
                               "in 500steps), nor never",
                               what, mu_quote(shown, sizeof shown, mu_str_of(text, n)));
        r = r < 0 ? option_fail_as(rd, 1) : 0;
    }
    if (r < 0)
        return r;
    rd->o->give_back_ns = ns;
    rd->o->give_back_steps = (uint32_t)steps;
    return 0;
}

static int set_same_failure(struct reading *rd, const char *text, const char *what)
{
    char shown[48];
    rd->o->same_failure_restart = strcmp(text, "restart") == 0;
    if (!rd->o->same_failure_restart && strcmp(text, "end") != 0)
        return option_fail(rd, 2, "%s: %s is not one of end|restart", what,
                           mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
    return 0;
}

/* Seconds; a text that is no number is usage, a senseless number is found later. */
static int
seconds(struct reading *rd, const char *text, int64_t min_ns, const char *what, int64_t *ret_ns)
{
    int r = mu_parse_seconds(text, min_ns, YEAR_NS, what, ret_ns, rd->err);
    return r == 0 ? 0 : option_fail_as(rd, r == -ERANGE ? 1 : 2);
}

static int set_monitor_interval(struct reading *rd, const char *text, const char *what)
{
    return seconds(rd, text, 1, what, &rd->o->monitor_interval_ns);
}

static int set_nothing(struct reading *rd, const char *text, const char *what)
{
    (void)rd;
    (void)text;
    (void)what;
    return 0;
}

static int set_event_log_handler(struct reading *rd, const char *text, const char *what)
{
    char shown[64];
    rd->o->events_on_console = strcmp(text, "console") == 0;
    if (rd->o->events_on_console || strcmp(text, "null") == 0)
        return 0;
    return option_fail(rd, 1, "%s: %s is not one of null, console", what,
                       mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
}

static int set_role(struct reading *rd, const char *text, const char *what)
{
    if (strlen(text) >= MU_ROLE_BYTES)
        return option_fail(rd, 1, "%s is longer than %d characters", what, MU_ROLE_BYTES - 1);
    rd->o->role = text;
    return 0;
}

static int set_module(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->module = true;
    return 0;
}

static int set_no_python(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->no_python = true;
    return 0;
}

static int set_run_path(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->run_path = true;
    return 0;
}

static int set_log_dir(struct reading *rd, const char *text, const char *what)
{
    if (text[0] == '\0')
        return option_fail(rd, 1, "%s is empty: give a directory, or /dev/null for no files", what);
    rd->o->log_dir = text;
    return 0;
}

static int set_redirects(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->redirects_text = text;
    return 0;
}

static int set_tee(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->tee_text = text;
    return 0;
}

static int set_filter(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->filter_text = text;
    return 0;
}

static int set_node_rank(struct reading *rd, const char *text, const char *what)
{
    int64_t n = 0;
    int r = option_int(rd, 2, text, 0, MU_NODES_MAX - 1, what, &n);
    if (r < 0)
        return r;
    rd->node_rank_given = true;
    rd->o->node_rank = (int32_t)n;
    return 0;
}

static int set_master_addr(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->master_addr = text;
    return 0;
}

static int set_master_port(struct reading *rd, const char *text, const char *what)
{
    int64_t port = 0;
    int r = option_int(rd, 2, text, 0, 65535, what, &port);
    if (r == 0)
        rd->master_port = text;
    return r;
}

static int set_local_addr(struct reading *rd, const char *text, const char *what)
{
    if (text[0] == '\0' || strlen(text) >= MU_HOST_BYTES)
        return option_fail(rd, 1, "%s: give a name or address of 1 to %d characters", what,
                           MU_HOST_BYTES - 1);
    rd->o->local_addr = text;
    return 0;
}

static int set_logs_specs(struct reading *rd, const char *text, const char *what)
{
    char shown[64];
    if (strcmp(text, "default") == 0)
        return 0;
    return option_fail(rd, 1,
                       "%s: %s is a plug-in for Python's torchrun and cannot be loaded here: "
                       "use --log-dir, --redirects and --tee",
                       what, mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
}

static int set_numa_binding(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->o->numa = text;
    return 0;
}

static int set_copy_stdout(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->o->copy_words[0] = text;
    return 0;
}

static int set_copy_stderr(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->o->copy_words[1] = text;
    return 0;
}

static int set_label(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->o->label = true;
    return 0;
}

static int set_exit_status(struct reading *rd, const char *text, const char *what)
{
    char shown[48];
    rd->o->exit_status_first = strcmp(text, "first") == 0;
    if (!rd->o->exit_status_first && strcmp(text, "one") != 0)
        return option_fail(rd, 2, "%s: %s is not one of one|first", what,
                           mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
    return 0;
}

static int set_last_lines(struct reading *rd, const char *text, const char *what)
{
    int64_t n = 0;
    int r = option_int(rd, 2, text, 0, MU_OUTPUT_LINES_MAX, what, &n);
    if (r == 0)
        rd->o->last_lines = (uint32_t)n;
    return r;
}

static int signal_number(const char *name)
{
    static const struct {
        const char *name;
        int signo;
    } other_names[] = {{"SIGIOT", SIGABRT}, {"SIGPOLL", SIGIO}, {"SIGCLD", SIGCHLD}};
    char buf[16];
    for (int signo = 1; signo < 32; signo++)
        if (strcmp(mu_signal_name(signo, buf), name) == 0)
            return signo;
    for (size_t i = 0; i < MU_COUNT(other_names); i++)
        if (strcmp(other_names[i].name, name) == 0)
            return other_names[i].signo;
    return 0;
}

static int add_signal(struct reading *rd, struct mu_str s, const char *what)
{
    char name[24] = "";
    char shown[48];
    struct agent_options *o = rd->o;
    memcpy(name, s.p, s.n < sizeof name - 1 ? s.n : sizeof name - 1);
    int signo = s.n < sizeof name ? signal_number(name) : 0;
    if (signo == 0) {
        option_note(rd, "%s: %s is not the name of a signal (as in SIGTERM) and is left out", what,
                    mu_quote(shown, sizeof shown, s));
        return 0;
    }
    if (signo == SIGKILL || signo == SIGSTOP)
        return option_fail(rd, 1, "%s: %s cannot be caught by any program", what, name);
    for (uint32_t i = 0; i < o->signal_count; i++)
        if (o->signals[i] == signo)
            return 0;
    MU_ASSERT(o->signal_count < AGENT_SIGNALS_MAX); /* 31 signals, each once. */
    o->signals[o->signal_count++] = signo;
    return 0;
}

static int set_signals(struct reading *rd, const char *text, const char *what)
{
    rd->o->signal_count = 0; /* The list replaces the one before. */
    rd->o->signals_text = text;
    for (const char *p = text;; p++) {
        p += strspn(p, " \t");
        size_t n = strcspn(p, ",");
        size_t trimmed = n;
        while (trimmed > 0 && (p[trimmed - 1] == ' ' || p[trimmed - 1] == '\t'))
            trimmed--;
        int r = add_signal(rd, mu_str_of(p, trimmed), what);
        if (r < 0)
            return r;
        p += n;
        if (*p == '\0')
            return 0;
    }
}

static int set_preemption_url(struct reading *rd, const char *text, const char *what)
{
    enum notice_kind kind;
    if (!notice_kind_of(text, &kind))
        return option_fail(rd, 2, "%s: \"%.60s\" is neither aws, gcp, azure nor an http:// URL",
                           what, text);
    const char *host = kind == NOTICE_URL ? strstr(text, "//") + 2 : text;
    if (memchr(host, '@', strcspn(host, "/?")) != NULL)
        return option_fail(rd, 2, "%s: no user or password in it: every process may read them",
                           what);
    if (strlen(text) > PREEMPTION_URL_BYTES_MAX)
        return option_fail(rd, 2, "%s: at most %d bytes", what, PREEMPTION_URL_BYTES_MAX);
    rd->o->preemption_url = text;
    return 0;
}

static int set_drain_timeout(struct reading *rd, const char *text, const char *what)
{
    int r = seconds(rd, text, 0, what, &rd->o->drain_timeout_ns);
    if (r == 0 && rd->o->drain_timeout_ns > MU_DRAIN_MAX_NS)
        return option_fail(rd, 2, "%s: a day (86400) is the most", what);
    return r;
}

static int set_shutdown_timeout(struct reading *rd, const char *text, const char *what)
{
    /* Beyond torchrun, which wants whole seconds: fractions. */
    return seconds(rd, text, 0, what, &rd->o->shutdown_timeout_ns);
}

static int set_progress_timeout(struct reading *rd, const char *text, const char *what)
{
    if (strcmp(text, "auto") == 0) {
        rd->o->progress_timeout_ns = HANG_LEARNED;
        return 0;
    }
    return seconds(rd, text, 0, what, &rd->o->progress_timeout_ns);
}

static int set_silence_timeout(struct reading *rd, const char *text, const char *what)
{
    return seconds(rd, text, 0, what, &rd->o->silence_timeout_ns);
}

static int set_health_check(struct reading *rd, const char *text, const char *what)
{
    if (text[strspn(text, " \t\n")] == '\0')
        return option_fail(rd, 2, "%s is empty: give a command of the shell", what);
    rd->o->health_check = text;
    return 0;
}

static int set_health_timeout(struct reading *rd, const char *text, const char *what)
{
    return seconds(rd, text, NS_PER_S / 10, what, &rd->o->health_timeout_ns);
}

static int set_health_interval(struct reading *rd, const char *text, const char *what)
{
    return seconds(rd, text, NS_PER_S / 10, what, &rd->o->health_interval_ns);
}

static int set_no_doctor(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->o->no_doctor = true;
    return 0;
}

static int set_leave_quarantine(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->o->leave_quarantine = true;
    return 0;
}

static int set_token_file(struct reading *rd, const char *text, const char *what)
{
    if (text[0] == '\0')
        return option_fail(rd, 2, "%s: the path is empty", what);
    rd->o->token_file = text;
    return 0;
}

static int set_hang_hook(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->o->hang_hook = strcmp(text, "none") == 0 ? "" : text;
    return 0;
}

static int set_hang_hook_timeout(struct reading *rd, const char *text, const char *what)
{
    return seconds(rd, text, 0, what, &rd->o->hang_hook_timeout_ns);
}

static int set_virtual_local_rank(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->o->virtual_local_rank = true;
    return 0;
}

static int set_rdzv(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->rdzv = text;
    return 0;
}

static int set_surroundings(struct reading *rd, const char *text, const char *what)
{
    static const char *const words[] = {
        [SURROUNDINGS_AUTO] = "auto",   [SURROUNDINGS_NONE] = "none",
        [SURROUNDINGS_SLURM] = "slurm", [SURROUNDINGS_OPENMPI] = "openmpi",
        [SURROUNDINGS_PMI] = "pmi",     [SURROUNDINGS_KUBERNETES] = "kubernetes"};
    char shown[48];
    for (size_t i = 0; i < MU_COUNT(words); i++) {
        if (strcmp(words[i], text) != 0)
            continue;
        rd->surroundings = (enum surroundings_kind)i;
        return 0;
    }
    return option_fail(rd, 2, "%s: %s is not one of auto|none|slurm|openmpi|pmi|kubernetes", what,
                       mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
}

static int set_hostfile(struct reading *rd, const char *text, const char *what)
{
    if (text[0] == '\0')
        return option_fail(rd, 1, "%s is empty: give a file with one host a line", what);
    rd->hostfile = text;
    return 0;
}

static int set_chaos(struct reading *rd, const char *text, const char *what)
{
    (void)what;
    rd->chaos = text;
    return 0;
}

static int set_on_join(struct reading *rd, const char *text, const char *what)
{
    char shown[48];
    rd->o->on_join_restart = strcmp(text, "restart") == 0;
    if (!rd->o->on_join_restart && strcmp(text, "wait") != 0)
        return option_fail(rd, 2, "%s: %s is not one of wait|restart", what,
                           mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
    return 0;
}

static int set_server_timeout(struct reading *rd, const char *text, const char *what)
{
    return seconds(rd, text, 1, what, &rd->o->server_timeout_ns);
}

static int set_store_port(struct reading *rd, const char *text, const char *what)
{
    int64_t port = 0;
    int r = option_int(rd, 2, text, 0, 65535, what, &port);
    if (r == 0)
        rd->o->store_port = (uint16_t)port;
    return r;
}

static int set_topology(struct reading *rd, const char *text, const char *what)
{
    if (strlen(text) >= MU_HOST_BYTES)
        return option_fail(rd, 1, "%s is longer than %d characters", what, MU_HOST_BYTES - 1);
    rd->o->topology = text[0] != '\0' ? text : NULL;
    return 0;
}

static int set_service(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->o->service = true;
    rd->o->mode = AGENT_SERVE;
    return 0;
}

static int set_slots(struct reading *rd, const char *text, const char *what)
{
    int64_t n = 0;
    int r = option_int(rd, 2, text, 1, MU_WORKERS_MAX, what, &n);
    rd->o->slots = (uint32_t)n;
    return r;
}

static int set_bytes(struct reading *rd, const char *text, const char *what, uint64_t *ret)
{
    int r = mu_parse_bytes(text, UINT64_C(1) << 20, UINT64_C(1) << 50, what, ret, rd->err);
    return r == 0 ? 0 : option_fail_as(rd, 2);
}

static int set_log_bytes(struct reading *rd, const char *text, const char *what)
{
    return set_bytes(rd, text, what, &rd->o->log_bytes);
}

static int set_log_bytes_all(struct reading *rd, const char *text, const char *what)
{
    return set_bytes(rd, text, what, &rd->o->log_bytes_all);
}

static int set_log_format(struct reading *rd, const char *text, const char *what)
{
    char shown[48];
    if (strcmp(text, "json") != 0 && strcmp(text, "text") != 0)
        return option_fail(rd, 2, "%s: %s is not one of text|json", what,
                           mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
    rd->o->log_format = strcmp(text, "json") == 0 ? MU_LOG_JSON : MU_LOG_TEXT;
    return 0;
}

static int act_help(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->o->mode = AGENT_SHOW_HELP;
    return 0;
}

static int act_version(struct reading *rd, const char *text, const char *what)
{
    (void)text;
    (void)what;
    rd->o->mode = AGENT_SHOW_VERSION;
    return 0;
}

/* --- the table --- */

/* clang-format off */
const struct option_row option_rows[] = {
    {"nnodes", 0, 0, "N|MIN:MAX", set_nnodes, "1:1",
     "Nodes of the job. MIN:MAX lets it run with fewer than MAX; more than MAX wait as spares."},
    {"nproc-per-node", 0, 0, "N|cpu|gpu|auto", set_nproc, "1",
     "Workers of this node: a number, or one per CPU of the affinity mask, one per visible GPU, or auto: GPUs where there "
     "are any, else CPUs. Nodes may differ."},
    {"rdzv-backend", 0, 0, "static|c10d", set_backend, "static",
     "torchrun's word for how nodes meet. Both meet at an rdzv-server here; etcd is not needed."},
    {"rdzv-endpoint", 0, 0, "HOST[:PORT]", set_endpoint, NULL,
     "torchrun's word for where nodes meet. With c10d the port is 29400 unless given; static needs one."},
    {"rdzv-id", 0, 0, "ID", set_run_id, "none",
     "The job's run id: agents with the same id at the same server meet. Empty: a fresh one."},
    {"rdzv-conf", 0, 0, "KEY=VALUE,...", set_conf, NULL,
     "Settings of the rendezvous: join_timeout (600 s for enough nodes to come), last_call_timeout (30 s for more than "
     "enough), read_timeout (60 s to reach the server at first), timeout (900 s, static), is_host. torchrun's other keys "
     "are accepted."},
    {"standalone", 0, 0, NULL, set_standalone, NULL,
     "One node by itself, under a fresh run id; endpoint, backend and id are ignored. Also what happens when nothing "
     "says where to meet and one node is enough."},
    {"max-restarts", 0, 0, "N|N/WINDOW", set_max_restarts, "0",
     "How many failures the job may start again after, on all nodes together. Nodes that come and go cost nothing. N/WINDOW, as in 3/1h (units "
     "s, m, h, d): at most N, up to 100, within any such time."},
    {"monitor-interval", 0, 0, "SECONDS", set_monitor_interval, "0.1",
     "Accepted for torchrun's sake: nothing here polls."},
    {"start-method", 0, OPTION_WORDS, "spawn|fork|forkserver", set_nothing, "spawn",
     "Accepted for torchrun's sake: it concerns --run-path alone."},
    {"event-log-handler", 0, 0, "null|console", set_event_log_handler, "null",
     "Where torchrun's events go: nowhere, or to stderr, one JSON object a line."},
    {"role", 0, 0, "NAME", set_role, "default", "The workers' role: ROLE_NAME, and who ROLE_RANK counts."},
    {"module", 'm', 0, NULL, set_module, NULL, "The program is a Python module: python -u -m NAME."},
    {"no-python", 0, 0, NULL, set_no_python, NULL, "The program is no Python script: look it up in PATH and run it."},
    {"run-path", 0, 0, NULL, set_run_path, NULL,
     "The program is a Python script that runs inside runpy.run_path(); an exception of it is always in its error file. "
     "Beats --module and --no-python."},
    {"log-dir", 0, 0, "DIR", set_log_dir, NULL,
     "Where workers' files go: DIR/ID_RANDOM/attempt_N/LOCAL_RANK/; by default a folder torchelastic_XXXX in $TMPDIR. "
     "/dev/null: no files at all, --redirects and --tee have no effect. A full disk stops no worker: lines that files do not take are counted, and said once. "
     "With --service: the folder in which the output of jobs is kept."},
    {"redirects", 'r', 0, "MAP", set_redirects, "0",
     "Which streams go to files instead of the console: 1 stdout, 2 stderr, 3 both, 0 none; for all workers, or "
     "RANK:DIGIT,RANK:DIGIT by local rank."},
    {"tee", 't', 0, "MAP", set_tee, "0",
     "Which streams go to files and, line by line with a prefix, to the console; as --redirects, which it beats there. "
     "The prefix is [ROLE LOCAL_RANK]: without the blank, or TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE with ${role_name}, "
     "${rank} and ${local_rank} filled in."},
    {"local-ranks-filter", 0, 0, "LIST", set_filter, NULL,
     "Local ranks that may write to the console, as in 0,1. What the others write goes to their files alone, if they "
     "have any. Default: all."},
    {"duplicate-stdout-filters", 0, 0, "LIST", set_copy_stdout, NULL,
     "Lines of --tee's stdout with one of these words in them go to attempt_N/filtered_stdout.log as well. As in "
     "loss,epoch; a comma is written twice."},
    {"duplicate-stderr-filters", 0, 0, "LIST", set_copy_stderr, NULL, "The same for stderr and filtered_stderr.log."},
    {"node-rank", 0, 0, "N", set_node_rank, NULL, "The rank this node wants among the nodes. Refused where another node has it."},
    {"master-addr", 0, 0, "HOST", set_master_addr, "127.0.0.1", "Where nodes meet, static, when there is no endpoint."},
    {"master-port", 0, 0, "PORT", set_master_port, "29500",
     "And on which port. Giving it on a single node means: meet there, not by yourself."},
    {"local-addr", 0, 0, "HOST", set_local_addr, NULL, "Name or address under which others reach this node."},
    {"logs-specs", 0, OPTION_NO_PET, "NAME", set_logs_specs, NULL,
     "default, the layout under --log-dir, is the only one: others are plug-ins of Python's torchrun."},
    {"numa-binding", 0, OPTION_NO_PET | OPTION_WORDS, "node|socket|exclusive|core-complex", set_numa_binding, NULL,
     "Which CPUs a worker gets: those of its GPU's NUMA node; of that socket; a share of the node's cores of its own; or "
     "one group of them with a common last cache. Without GPUs workers are dealt to the nodes in order."},
    {"signals-to-handle", 0, 0, "LIST", set_signals, "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
     "Signals that are passed on to the workers before the agent ends. Unless it is listed, SIGUSR1 asks this node to leave in order."},
    {"shutdown-timeout", 0, 0, "SECONDS", set_shutdown_timeout, "30",
     "From a signal that asks workers to end to SIGKILL, whatever the reason. Also TORCH_ELASTIC_SHUTDOWN_TIMEOUT."},
    {"virtual-local-rank", 0, 0, NULL, set_virtual_local_rank, NULL,
     "Every worker gets LOCAL_RANK 0 and its own single entry of CUDA_VISIBLE_DEVICES."},
    {"help", 'h', OPTION_NO_PET | OPTION_ACTS, NULL, act_help, NULL, "Print this and end."},

    {"rdzv", 0, OPTION_OWN, "HOST[:PORT]", set_rdzv, NULL,
     "Where nodes meet: an rdzv-server, port 29500 unless given. If HOST is this node and nothing listens there, this "
     "agent serves it. Takes the place of --rdzv-backend and --rdzv-endpoint."},
    {"surroundings", 0, OPTION_OWN | OPTION_WORDS, "auto|none|slurm|openmpi|pmi|kubernetes", set_surroundings, "auto",
     "Who tells how many nodes there are, which one this is and where they meet, as far as no flag and no PET_ variable does: "
     "srun, Open MPI's mpirun, MPICH's or Intel's mpiexec (pmi), a Kubernetes Job. A line says what was taken from "
     "where. auto: whoever started this agent. Named, each task counts as a node, also several on one host."},
    {"hostfile", 0, OPTION_OWN, "FILE", set_hostfile, NULL,
     "The nodes, one host a line: HOST, HOST slots=N or HOST:N, N being its workers. They meet at the first; this node's "
     "line is found by its name or addresses, or is --node-rank (from 0). The same file on every node."},
    {"on-join", 0, OPTION_OWN | OPTION_WORDS, "wait|restart", set_on_join, "wait",
     "What a node that arrives while the job runs does when there is room: wait for the next round, or start one "
     "(as torchrun does: the default with backend c10d)."},
    {"restarts-given-back-after", 0, OPTION_OWN, "TIME|Nsteps|never", set_given_back, "never",
     "The restarts spent so far count no longer once a round has run so long without a failure (as in 30m), or once the slowest of its ranks has come "
     "N reported steps (muster_progress, on every rank) further than the first that the round reported. TORCHELASTIC_RESTART_COUNT counts on."},
    {"same-failure", 0, OPTION_OWN | OPTION_WORDS, "end|restart", set_same_failure, "end",
     "What follows when a rank fails as in the round before: same kind, status or signal, rank, and last reported step, with no round in between that "
     "brought this rank further. end: the job ends with status 65, since starting again does not help. Only for workers that report steps; of those the agent "
     "is told at most ten a second, so the step is the last one told."},
    {"exit-status", 0, OPTION_OWN | OPTION_WORDS, "one|first", set_exit_status, "one",
     "What a failed job ends with: 1, as torchrun, or the first failing worker's own status (128 + n for signal n; also where the agent itself was "
     "told to stop by it). first beats the 65 of --same-failure."},
    {"last-lines", 0, OPTION_OWN, "N", set_last_lines, "10",
     "How many of the last lines of the worker that failed first are shown at the end, on every node; at most 20. For that a "
     "worker's stderr passes through the agent, byte by byte, unless that is a terminal; so does its stdout where both lead to the same "
     "place. 0: workers inherit both, and the lines are known only where --tee, --redirects or --label brings them here."},
    {"drain-timeout", 0, OPTION_OWN, "SECONDS", set_drain_timeout, "60",
     "Once this node is asked to leave (SIGUSR1, muster drain, a preemption notice without a time of its own): how long its workers may take to the "
     "step after which all nodes' workers stop, and to their checkpoint. Then they are ended with SIGTERM."},
    {"preemption-url", 0, OPTION_OWN, "URL|aws|gcp|azure", set_preemption_url, NULL,
     "Ask every 5 s whether this machine is about to be taken away, and leave in order when it is: the metadata service of AWS (spot), GCP or "
     "Azure, or any URL that answers 200 then, and 404 or 204 before. MUSTER_METADATA_HOST=HOST[:PORT] takes the place of the service's own."},
    {"progress-timeout", 0, OPTION_OWN, "SECONDS|auto", set_progress_timeout, "0",
     "A worker that has reported a step (muster_progress) must report the next within so long, or it hangs: the group is stopped, the "
     "cause is no_progress, and a restart is spent. While it is in a section with a limit of its own that one holds. auto: ten times the longest "
     "step of this node's workers so far, once three were seen, and at least 60 s. 0: no limit; status shows silent_since all the same."},
    {"silence-timeout", 0, OPTION_OWN, "SECONDS", set_silence_timeout, "0",
     "The same for workers without the SDK: how long one may give no sign of life, which is CPU time of it or its descendants, output that passes "
     "through the agent (stderr mostly does), or a reported step. One that spins in a collective is not silent. 0: no limit."},
    {"health-check", 0, OPTION_OWN, "COMMAND", set_health_check, NULL,
     "A command of the shell that looks whether this node is fit, run before each round: when the agent comes, and after each round's end. "
     "Where it ends with a status of its own other than 0, the node takes part in no round, status shows why (the last line that it wrote), and it is "
     "tried again, ever less often, until it passes. A command that is not there (126, 127), that a signal ended "
     "(also 128 + n), or that did not end in time excludes nobody, and is said once."},
    {"health-check-timeout", 0, OPTION_OWN, "SECONDS", set_health_timeout, "30",
     "How long that may take before it is killed."},
    {"health-check-interval", 0, OPTION_OWN, "SECONDS", set_health_interval, "30",
     "From a check that failed to the next one; twice as long each time, up to 10 min."},
    {"no-doctor", 0, OPTION_OWN, NULL, set_no_doctor, NULL,
     "Look at nothing where the rendezvous is late. By default, once, after a minute or half the time-out of joining where that is less, muster doctor "
     "looks at this node's names and its way to the server, beside the loop, and one line says what it found. Not with --health-check."},
    {"leave-quarantine", 0, OPTION_OWN | OPTION_NO_PET, NULL, set_leave_quarantine, NULL,
     "Forgives the failures that began on this host: a node set aside for them (rdzv-server --quarantine) is counted on again."},
    {"hang-hook", 0, OPTION_OWN, "CMD", set_hang_hook, NULL,
     "What is run for each worker of a node before a round that hangs is stopped, by sh, with MUSTER_HANG_PID, MUSTER_HANG_RANK and "
     "MUSTER_HANG_LOCAL_RANK in its environment. What it writes, up to 64 KiB, goes to stacks.log in the worker's folder where --log-dir is "
     "given, and for the one that hangs to the server's incident. Default: py-spy for Python workers, else gdb, as far as they are in PATH; "
     "else /proc's stack, wchan and status of each thread, which is also asked where the command writes nothing. none: nothing is run or read."},
    {"hang-hook-timeout", 0, OPTION_OWN, "SECONDS", set_hang_hook_timeout, "10",
     "How long that may take for all workers of a node together; what still runs then is killed. Where another node's worker hangs, the workers here "
     "are told to end that much later, or at most --shutdown-timeout."},
    {"label", 0, OPTION_OWN, NULL, set_label, NULL,
     "What workers write to the console plainly gets --tee's prefix before each line, too. No files."},
    {"server-timeout", 0, OPTION_OWN, "SECONDS", set_server_timeout, "60",
     "How long a lost server is waited for once something is needed from it. Workers run on meanwhile."},
    {"store-port", 0, OPTION_OWN | OPTION_NO_PET, "PORT", set_store_port, "0",
     "Port of the workers' store (MASTER_PORT) where this node leads, for firewalls; 0: any free one. The same on every "
     "node, since any may lead; not for several agents on one host."},
    {"token-file", 0, OPTION_OWN, "FILE", set_token_file, NULL,
     "The cluster's token (muster token new makes one), for a server that has it: each shows the other that it does before anything else is said. "
     "The same file as rdzv-server's, readable by nobody else. Default: systemd's credential muster-token, else none. A rendezvous that this agent "
     "hosts has it too."},
    {"topology", 0, OPTION_OWN, "KEY", set_topology, NULL,
     "Sorts before the host name when ranks are first given out: nodes of one rack or switch get neighbouring ranks."},
    {"chaos", 0, OPTION_OWN | OPTION_NO_PET, "RULES", set_chaos, NULL,
     "Break things on purpose, to see what comes of it: rules with ';' between, as in 'kill rank=3 step=100; cut node=1 after=5s for=2s'. Faults: kill, freeze, "
     "stop-agent, kill-agent, cut, fill-disk, random; their words are in docs/faults.md. Off unless given, here or in MUSTER_CHAOS; said loudly "
     "on stderr, as is each fault."},
    {"service", 0, OPTION_OWN | OPTION_NO_PET, NULL, set_service, NULL,
     "Offer this node to the server at --rdzv, and run the jobs that it places here, each by an agent of its own, as the user that this one runs as. Takes no "
     "program. Lasts until it is told to end (SIGTERM); SIGHUP starts it anew and leaves its jobs alone, SIGUSR1 takes no more jobs."},
    {"slots", 0, OPTION_OWN | OPTION_NO_PET, "N", set_slots, NULL,
     "With --service: how many workers this node takes, of all jobs together. Default: one for each GPU, else one for each CPU."},
    {"log-bytes", 0, OPTION_OWN | OPTION_NO_PET, "SIZE", set_log_bytes, "256M",
     "With --service: output kept of one start of a job, below --log-dir; beyond it the older half is dropped, which a line says."},
    {"log-bytes-all", 0, OPTION_OWN | OPTION_NO_PET, "SIZE", set_log_bytes_all, "4G",
     "With --service: output kept of all jobs; beyond it that of ended ones goes, the oldest first."},
    {"log-format", 0, OPTION_OWN | OPTION_WORDS, "text|json", set_log_format, "text",
     "Form of the agent's own log lines. Their level is LOGLEVEL's: ERROR, WARNING, INFO or DEBUG."},
    {"version", 0, OPTION_OWN | OPTION_NO_PET | OPTION_ACTS, NULL, act_version, NULL, "Print the version and end."},
};
/* clang-format on */
const size_t option_count = MU_COUNT(option_rows);
