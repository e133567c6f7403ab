#include "launcher/options.h"

#include <errno.h>
#include <string.h>

#include "base/words.h"
#include "launcher/options_words.h"
#include "launcher/agent_flags.h"
#include "launcher/options_jobs.h"

#define S(n) ((n)*INT64_C(1000000000))
#define DEFAULT_PORT 29500

struct verb {
    const char *word;
    const char *argument;
    const char *doc;
};

#define X(NAME, word, argument, doc) {word, argument, doc},
static const struct verb verbs[CLI_VERB_COUNT] = {CLI_VERBS(X)};
#undef X

#define OF(verb) (1U << CLI_##verb)

struct option {
    const char *name;
    char letter;       /* 0: none. */
    const char *value; /* What to write behind it; NULL: a switch; "[…]": may be left out, and then
                          stands behind '='. */
    cli_set_fn *set;   /* `text` is NULL for a switch, and for a value left out. */
    const char *doc;
    unsigned of; /* The commands that it goes with, OF(...); 0: all. */
};

/* --- what each option does --- */

static int set_rdzv(struct cli_options *o, const char *text, struct mu_err *err)
{
    o->has_server = true;
    return mu_parse_endpoint(text, DEFAULT_PORT, "--rdzv", &o->server, err);
}

static int set_watch(struct cli_options *o, const char *text, struct mu_err *err)
{
    o->watch = true;
    return text != NULL
               ? mu_parse_seconds(text, S(1) / 20, S(3600), "--watch", &o->interval_ns, err)
               : 0;
}

static int set_json(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)text;
    (void)err;
    o->json = true;
    return 0;
}

static int set_timeout(struct cli_options *o, const char *text, struct mu_err *err)
{
    return mu_parse_seconds(text, S(1) / 10, S(3600), "--timeout", &o->timeout_ns, err);
}

static int set_job(struct cli_options *o, const char *text, struct mu_err *err)
{
    if (o->job != NULL && strcmp(o->job, text) != 0)
        return mu_err_set(err, -EINVAL, "--job: a job is named already");
    o->job = text;
    return 0;
}

static int set_token_file(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)err;
    o->token_file = text;
    return 0;
}

static int set_drain_timeout(struct cli_options *o, const char *text, struct mu_err *err)
{
    return mu_parse_seconds(text, 0, S(86400), "--drain-timeout", &o->drain_timeout_ns, err);
}

static int set_local(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)text;
    (void)err;
    o->local = true;
    return 0;
}

static int set_quick(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)text;
    (void)err;
    o->quick = true;
    return 0;
}

static int set_brief(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)text;
    (void)err;
    o->brief = true;
    return 0;
}

static int set_log_dir(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)err;
    o->log_dir = text;
    return 0;
}

static int set_colour(struct cli_options *o, const char *text, struct mu_err *err)
{
    static const char *const words[] = {
        [CLI_AUTO] = "auto", [CLI_ALWAYS] = "always", [CLI_NEVER] = "never"};
    char shown[64];
    for (size_t i = 0; i < MU_COUNT(words); i++)
        if (strcmp(words[i], text) == 0) {
            o->colour = (enum cli_when)i;
            return 0;
        }
    return mu_err_set(err, -EINVAL, "--color: %s is not auto, always or never",
                      mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
}

static int set_help(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)text;
    (void)err;
    o->help = true;
    return 0;
}

static int set_version(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)text;
    (void)err;
    o->version = true;
    return 0;
}

/* clang-format off */
static const struct option options[] = {
    {"rdzv", 'r', "HOST[:PORT]", set_rdzv, "the rdzv-server to ask, or the node-agent that hosts the rendezvous; default $MUSTER_RDZV, else localhost:29500", 0},
    {"watch", 'w', "[SECONDS]", set_watch, "show it anew at each change, and ages every second or as often as said; with a JOB until it ends, with its outcome as exit status", OF(STATUS) | OF(JOBS) | OF(NODES) | OF(WORKERS) | OF(POOL)},
    {"json", 'j', NULL, set_json, "as JSON, with the names of docs/status.md and docs/incidents.md; with --watch one line at each change", 0},
    {"timeout", 't', "SECONDS", set_timeout, "how long an answer may take; default 5", 0},
    {"job", 0, "JOB", set_job, "the job that is meant, as behind the command; for drain: where a node of that name is in several", ~(OF(JOBS) | OF(RUN) | OF(POOL) | OF(UNDRAIN) | OF(STORE) | OF(TOKEN) | OF(DOCTOR))},
    {"drain-timeout", 0, "SECONDS", set_drain_timeout, "for drain: how long until the node leaves in any case; default 60", OF(DRAIN)},
    {"nnodes", 0, "N|MIN:MAX", cli_set_nnodes, "for run: on how many nodes; default 1, or with hosts all of them", OF(RUN)},
    {"nproc-per-node", 0, "N", cli_set_nproc, "for run: workers on each node; default 1", OF(RUN)},
    {"gpus-per-node", 0, "N", cli_set_gpus, "for run: GPUs on each node; default one a worker where the nodes have any", OF(RUN)},
    {"name", 0, "NAME", cli_set_name, "for run: what the job's id begins with; default the program's name", OF(RUN)},
    {"cwd", 0, "DIR", cli_set_cwd, "for run: the folder in which workers start; default this one", OF(RUN)},
    {"env", 0, "K[=V]", cli_set_env, "for run: a variable of the workers, without V as it is here; may be given again", OF(RUN)},
    {"no-requeue", 0, NULL, cli_set_no_requeue, "for run: end the job where its nodes are lost; else it starts again by itself", OF(RUN)},
    {"detach", 'd', NULL, cli_set_detach, "for run and resume: print the job's id alone, and return", OF(RUN) | OF(RESUME)},
    {"hosts", 0, "HOST,...", cli_set_hosts, "for run: without a service, by ssh to these hosts; the first is where the nodes meet. A --token-file must be on each of them under the same path", OF(RUN)},
    {"hostfile", 0, "FILE", cli_set_hostfile, "for run: the same, hosts from a file, one a line", OF(RUN)},
    {"agent", 0, "PATH", cli_set_agent, "for run with hosts: the node-agent there; default by PATH", OF(RUN)},
    {"follow", 'f', NULL, cli_set_follow, "for logs: go on until the job has ended", OF(LOGS)},
    {"rank", 0, "N", cli_set_rank, "for logs and attach: of that worker alone", OF(LOGS) | OF(ATTACH)},
    {"host", 0, "HOST", cli_set_host, "for logs and attach: of that host's workers alone", OF(LOGS) | OF(ATTACH)},
    {"since", 0, "TIME", cli_set_since, "for logs: not what is older than a span (90s, 10m, 2h) or a time of UTC (2026-11-30, 2026-11-30T06:46)", OF(LOGS)},
    {"lines", 'n', "N", cli_set_lines, "for logs and attach: the last N lines, with -f and for attach of each node, and what follows; default all, for attach 10", OF(LOGS) | OF(ATTACH)},
    {"signal", 0, "SIGTERM|SIGINT|SIGKILL", cli_set_signal, "for stop: the signal that workers get; default SIGTERM", OF(STOP)},
    {"grace", 0, "SECONDS", cli_set_grace, "for stop: how long until SIGKILL follows; default the agent's, 30", OF(STOP)},
    {"wait", 0, NULL, cli_set_wait, "for stop: return when it has ended", OF(STOP)},
    {"local", 0, NULL, set_local, "for doctor: this machine alone, and with --rdzv its way to the server; nothing else needs to run", OF(DOCTOR)},
    {"quick", 0, NULL, set_quick, "for doctor: leave out what links carry", OF(DOCTOR)},
    {"brief", 0, NULL, set_brief, "for doctor --local: names, own port and the server alone, and of these the worst in one sentence", OF(DOCTOR)},
    {"log-dir", 0, "DIR", set_log_dir, "for doctor: a folder whose disk is to be looked at too", OF(DOCTOR)},
    {"token-file", 0, "FILE", set_token_file, "the server's token, for what changes something; default $MUSTER_TOKEN_FILE, else ~/.config/muster/token, else /etc/muster/token", 0},
    {"color", 0, "auto|always|never", set_colour, "colours; default auto: on a terminal, unless NO_COLOR is set", 0},
    {"version", 0, NULL, set_version, "print the version and exit", 0},
    {"help", 'h', NULL, set_help, "print this text and exit; behind a command, that command's", 0},
};
/* clang-format on */

/* --- parsing --- */

static bool is_optional(const struct option *o)
{
    return o->value != NULL && o->value[0] == '[';
}

static const struct option *find_option(const char *name, size_t n, bool is_letter)
{
    for (size_t i = 0; i < MU_COUNT(options); i++) {
        if (is_letter ? options[i].letter == name[0] : cli_flag_is(options[i].name, name, n))
            return &options[i];
    }
    return NULL;
}

static int unknown(const char *arg, const char *name, size_t n, bool is_letter, struct mu_err *err)
{
    const char *names[MU_COUNT(options)];
    char shown[64];
    char word[32];
    for (size_t i = 0; i < MU_COUNT(options); i++)
        names[i] = options[i].name;
    (void)mu_quote(shown, sizeof shown, mu_str_of(arg, strlen(arg)));
    const char *near = NULL;
    if (!is_letter && n < sizeof word) {
        memcpy(word, name, n);
        word[n] = '\0';
        near = mu_nearest(word, names, MU_COUNT(names));
    }
    if (near == NULL)
        return mu_err_set(err, -EINVAL, "%s is not an option: muster --help lists them", shown);
    return mu_err_set(err, -EINVAL, "%s is not an option: did you mean --%s?", shown, near);
}

/* One option at argv[*i]: "--name value", "--name=value", "-x value", "-xvalue", "-x". Steps over
 * what it took. */
static int
take_option(struct cli_options *o, int argc, char *const *argv, int *i, struct mu_err *err)
{
    const char *arg = argv[*i];
    bool is_letter = arg[1] != '-';
    const char *name = arg + (is_letter ? 1 : 2);
    size_t n = is_letter ? 1 : strcspn(name, "=");
    const struct option *row = find_option(name, n, is_letter);
    const char *value = NULL;
    if (o->verb == CLI_RUN && (row == NULL || (row->of != 0 && (row->of & OF(RUN)) == 0))) {
        int r = cli_take_agent_flag(&o->run, argc, argv, i, err);
        if (r != -ENOENT)
            return r;
    }
    if (row == NULL)
        return unknown(arg, name, n, is_letter, err);
    o->given |= UINT64_C(1) << (row - options);
    if (name[n] != '\0')
        value = name + n + (name[n] == '=');
    if (value != NULL && row->value == NULL)
        return mu_err_set(err, -EINVAL, "--%s takes no value", row->name);
    if (value == NULL && row->value != NULL && !is_optional(row)) {
        if (*i + 1 >= argc)
            return mu_err_set(err, -EINVAL, "--%s needs a value: --%s %s", row->name, row->name,
                              row->value);
        value = argv[++*i];
    }
    return row->set(o, value, err);
}

static int take_verb(struct cli_options *o, const char *word, struct mu_err *err)
{
    const char *names[CLI_VERB_COUNT];
    char shown[64];
    for (size_t i = 0; i < CLI_VERB_COUNT; i++) {
        names[i] = verbs[i].word;
        if (strcmp(verbs[i].word, word) == 0) {
            o->verb = (enum cli_verb)i;
            return 0;
        }
    }
    const char *near = mu_nearest(word, names, CLI_VERB_COUNT);
    (void)mu_quote(shown, sizeof shown, mu_str_of(word, strlen(word)));
    if (near != NULL)
        return mu_err_set(err, -EINVAL, "%s is not a command: did you mean muster %s?", shown,
                          near);
    return mu_err_set(err, -EINVAL, "%s is not a command: muster --help lists them", shown);
}

/* An option for another command is a slip of the hand, not a wish. */
static int check_given(const struct cli_options *o, struct mu_err *err)
{
    for (size_t i = 0; i < MU_COUNT(options); i++)
        if ((o->given >> i & 1) != 0 && options[i].of != 0 && (options[i].of >> o->verb & 1) == 0)
            return mu_err_set(err, -EINVAL,
                              "--%s does not go with muster %s: muster %s --help lists what does",
                              options[i].name, verbs[o->verb].word, verbs[o->verb].word);
    return 0;
}

static bool takes_node(enum cli_verb verb)
{
    return verb == CLI_DRAIN || verb == CLI_UNDRAIN;
}

static int take_argument(struct cli_options *o, const char *word, struct mu_err *err)
{
    char shown[64];
    if (cli_takes_words(o->verb))
        return cli_take_word(o, word, err);
    const char **to = takes_node(o->verb) ? &o->node : &o->job;
    if (verbs[o->verb].argument != NULL && *to == NULL) {
        *to = word;
        return 0;
    }
    if (o->verb == CLI_INCIDENTS && o->number == 0)
        return mu_parse_u32(word, 1, UINT32_MAX, "muster incidents JOB N: N", &o->number, err);
    (void)mu_quote(shown, sizeof shown, mu_str_of(word, strlen(word)));
    return mu_err_set(err, -EINVAL, "muster %s takes %s: %s is one too many", verbs[o->verb].word,
                      o->verb == CLI_INCIDENTS          ? "one job and a number"
                      : takes_node(o->verb)             ? "one node"
                      : verbs[o->verb].argument != NULL ? "one job"
                                                        : "no argument",
                      shown);
}

int cli_options_parse(
    struct cli_options *o, int argc, char *const *argv, const char *rdzv_env, struct mu_err *err)
{
    bool only_words = false;
    *o = (struct cli_options){
        .verb = CLI_VERB_COUNT, .timeout_ns = S(5), .interval_ns = S(1), .drain_timeout_ns = -1};
    cli_options_jobs_init(o);
    for (int i = 1; i < argc; i++) {
        int r = 0;
        if (!only_words && strcmp(argv[i], "--") == 0)
            only_words = true;
        else if (!only_words && argv[i][0] == '-' && argv[i][1] != '\0')
            r = take_option(o, argc, argv, &i, err);
        else if (o->verb == CLI_VERB_COUNT)
            r = take_verb(o, argv[i], err);
        else if (o->verb == CLI_RUN) {
            o->run.argv = argv + i;
            o->run.argc = (uint32_t)(argc - i);
            break;
        } else
            r = take_argument(o, argv[i], err);
        if (r < 0)
            return r;
    }
    if (o->help || o->version)
        return 0;
    if (o->verb == CLI_VERB_COUNT)
        return mu_err_set(err, -EINVAL,
                          "a command is missing: muster status, or muster --help for all");
    if (o->verb == CLI_INCIDENTS && o->watch)
        return mu_err_set(err, -EINVAL,
                          "--watch does not go with muster incidents: muster status JOB --watch "
                          "follows a job");
    if (check_given(o, err) < 0 || cli_options_jobs_check(o, err) < 0)
        return err->code;
    if (takes_node(o->verb) && o->node == NULL)
        return mu_err_set(err, -EINVAL,
                          "muster %s needs a node: its host name, or its id as muster nodes "
                          "--json or muster pool has it",
                          verbs[o->verb].word);
    if (cli_check_words(o, err) < 0)
        return err->code;
    if (o->brief && (!o->local || o->json))
        return mu_err_set(err, -EINVAL, "--brief goes with muster doctor --local, without --json");
    bool has_env = rdzv_env != NULL && rdzv_env[0] != '\0';
    o->server_given = has_env || o->server.host[0] != '\0';
    if (o->server.host[0] != '\0')
        return 0;
    return mu_parse_endpoint(has_env ? rdzv_env : "localhost", DEFAULT_PORT, "MUSTER_RDZV",
                             &o->server, err);
}

/* --- help --- */

static void add_pair(struct mu_buf *b, const char *left, const char *doc)
{
    bool fits = strlen(left) <= 26;
    (void)mu_buf_addf(b, "  %-26s%s%s\n", left, fits ? " " : "\n                             ",
                      doc);
}

/* In a command's own help it need not be said again whose option it is: "for run and resume: " is
 * left out, and of "for run with hosts: " the first two words. */
static const char *own_doc(const char *doc)
{
    const char *p = doc;
    if (strncmp(p, "for ", 4) != 0)
        return doc;
    p += 4;
    for (bool found = true; found;) {
        found = strncmp(p, "and ", 4) == 0;
        p += found ? 4 : 0;
        for (size_t i = 0; i < CLI_VERB_COUNT && !found; i++) {
            size_t n = strlen(verbs[i].word);
            found = strncmp(p, verbs[i].word, n) == 0 && (p[n] == ' ' || p[n] == ':');
            if (found && p[n] == ':')
                return p + n + 2;
            p += found ? n + 1 : 0;
        }
    }
    return p;
}

static void add_options(struct mu_buf *b, enum cli_verb verb)
{
    (void)mu_buf_adds(b, "\nOptions:\n");
    for (size_t i = 0; i < MU_COUNT(options); i++) {
        const struct option *o = &options[i];
        struct mu_buf left;
        if (verb != CLI_VERB_COUNT && o->of != 0 && (o->of >> verb & 1) == 0)
            continue;
        mu_buf_init(&left, b->mem);
        if (o->letter != 0)
            (void)mu_buf_addf(&left, "-%c, ", o->letter);
        (void)mu_buf_addf(&left, "--%s", o->name);
        if (is_optional(o))
            (void)mu_buf_addf(&left, "[=%s", o->value + 1);
        else if (o->value != NULL)
            (void)mu_buf_addf(&left, " %s", o->value);
        add_pair(b, mu_buf_cstr(&left), verb == CLI_VERB_COUNT ? o->doc : own_doc(o->doc));
        mu_buf_fini(&left);
    }
}

static void add_argument(struct mu_buf *b, const struct verb *v)
{
    if (v->argument != NULL)
        (void)mu_buf_addf(b, " %s", v->argument);
}

static void add_commands(struct mu_buf *b)
{
    (void)mu_buf_adds(b, "Usage: muster COMMAND [options]\n\nStarts jobs, looks at them and at the "
                         "server where their nodes meet, and stops them.\n\nQuestions:\n");
    cli_add_questions(b);
    (void)mu_buf_adds(b, "\nCommands:\n");
    for (size_t i = 0; i < CLI_VERB_COUNT; i++) {
        struct mu_buf left;
        mu_buf_init(&left, b->mem);
        (void)mu_buf_adds(&left, verbs[i].word);
        add_argument(&left, &verbs[i]);
        add_pair(b, mu_buf_cstr(&left), verbs[i].doc);
        mu_buf_fini(&left);
    }
}

static bool only_looks(enum cli_verb verb)
{
    return verb <= CLI_INCIDENTS || verb == CLI_LOGS || verb == CLI_POOL || verb == CLI_STORE;
}

void cli_help(struct mu_buf *b, enum cli_verb verb)
{
    if (verb != CLI_VERB_COUNT) {
        const struct verb *v = &verbs[verb];
        (void)mu_buf_addf(b, "Usage: muster %s", v->word);
        if (verb == CLI_RUN)
            (void)mu_buf_adds(b, " [options]");
        add_argument(b, v);
        (void)mu_buf_addf(b, "%s\n\n%s%s.\n", verb == CLI_RUN ? "" : " [options]",
                          takes_node(verb)     ? "Asks the server to "
                          : verb == CLI_TOKEN  ? "Does this: "
                          : only_looks(verb)   ? "Shows "
                          : verb == CLI_DOCTOR ? "Says "
                                               : "To ",
                          v->doc);
        if (verb == CLI_RUN)
            cli_add_agent_flags(b);
        cli_help_words(b, verb);
    } else {
        add_commands(b);
    }
    add_options(b, verb);
    if (cli_takes_words(verb))
        return;
    (void)mu_buf_adds(b, "\nExamples:\n");
    cli_add_examples(b, verb);
}

bool cli_option_text(size_t i, struct mu_option_text *ret)
{
    if (i >= MU_COUNT(options))
        return false;
    const struct option *o = &options[i];
    *ret = (struct mu_option_text){.name = o->name,
                                   .letter = o->letter,
                                   .value = is_optional(o) ? NULL : o->value,
                                   .doc = o->doc};
    return true;
}

#define X(NAME, word, argument, doc) word " "
const char cli_commands[] = CLI_VERBS(X);
#undef X

const char *cli_verb_name(enum cli_verb verb)
{
    return verb < CLI_VERB_COUNT ? verbs[verb].word : "muster";
}
