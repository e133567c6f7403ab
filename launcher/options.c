#include "launcher/options.h"

#include <errno.h>
#include <string.h>

#include "base/words.h"

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

typedef int set_fn(struct cli_options *o, const char *text, struct mu_err *err);

struct option {
    const char *name;
    char letter;       /* 0: none. */
    const char *value; /* What to write behind it; NULL: a switch; "[…]": may be left out, and then
                          stands behind '='. */
    set_fn *set;       /* `text` is NULL for a switch, and for a value left out. */
    const char *doc;
};

/* --- what each option does --- */

static int set_rdzv(struct cli_options *o, const char *text, struct mu_err *err)
{
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
    {"rdzv", 'r', "HOST[:PORT]", set_rdzv, "the rdzv-server to ask, or the node-agent that hosts the rendezvous; default $MUSTER_RDZV, else localhost:29500"},
    {"watch", 'w', "[SECONDS]", set_watch, "show it again and again, every second or as often as said; with a JOB until it ends, with its outcome as exit status"},
    {"json", 'j', NULL, set_json, "as JSON, with the names of docs/status.md and docs/incidents.md; with --watch one line each time"},
    {"timeout", 't', "SECONDS", set_timeout, "how long an answer may take; default 5"},
    {"job", 0, "JOB", set_job, "the job that is meant, as behind the command; for drain: where a node of that name is in several"},
    {"drain-timeout", 0, "SECONDS", set_drain_timeout, "for drain: how long until the node leaves in any case; default 60"},
    {"local", 0, NULL, set_local, "for doctor: this machine alone, and with --rdzv its way to the server; nothing else needs to run"},
    {"quick", 0, NULL, set_quick, "for doctor: leave out what links carry"},
    {"brief", 0, NULL, set_brief, "for doctor --local: names, own port and the server alone, and of these the worst in one sentence"},
    {"log-dir", 0, "DIR", set_log_dir, "for doctor: a folder whose disk is to be looked at too"},
    {"color", 0, "auto|always|never", set_colour, "colours; default auto: on a terminal, unless NO_COLOR is set"},
    {"version", 0, NULL, set_version, "print the version and exit"},
    {"help", 'h', NULL, set_help, "print this text and exit; behind a command, that command's"},
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
        if (is_letter ? options[i].letter == name[0]
                      : strlen(options[i].name) == n && memcmp(options[i].name, name, n) == 0)
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
    if (row == NULL)
        return unknown(arg, name, n, is_letter, err);
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

static int take_argument(struct cli_options *o, const char *word, struct mu_err *err)
{
    char shown[64];
    const char **to = o->verb == CLI_DRAIN ? &o->node : &o->job;
    if (verbs[o->verb].argument != NULL && *to == NULL) {
        *to = word;
        return 0;
    }
    if (o->verb == CLI_INCIDENTS && o->number == 0)
        return mu_parse_u32(word, 1, UINT32_MAX, "muster incidents JOB N: N", &o->number, err);
    (void)mu_quote(shown, sizeof shown, mu_str_of(word, strlen(word)));
    return mu_err_set(err, -EINVAL, "muster %s takes %s: %s is one too many", verbs[o->verb].word,
                      o->verb == CLI_INCIDENTS          ? "one job and a number"
                      : o->verb == CLI_DRAIN            ? "one node"
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
    for (int i = 1; i < argc; i++) {
        int r = 0;
        if (!only_words && strcmp(argv[i], "--") == 0)
            only_words = true;
        else if (!only_words && argv[i][0] == '-' && argv[i][1] != '\0')
            r = take_option(o, argc, argv, &i, err);
        else if (o->verb == CLI_VERB_COUNT)
            r = take_verb(o, argv[i], err);
        else
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
    if (o->verb == CLI_DRAIN && o->node == NULL)
        return mu_err_set(err, -EINVAL,
                          "muster drain needs a node: its host name, or its id as muster nodes "
                          "--json has it");
    if (o->verb != CLI_DOCTOR && (o->local || o->quick || o->brief || o->log_dir != NULL))
        return mu_err_set(err, -EINVAL, "--%s belongs to muster doctor: muster %s does not take it",
                          o->local   ? "local"
                          : o->quick ? "quick"
                          : o->brief ? "brief"
                                     : "log-dir",
                          verbs[o->verb].word);
    if (o->verb == CLI_DOCTOR && o->watch)
        return mu_err_set(err, -EINVAL, "--watch does not go with muster doctor: it looks once");
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
    (void)mu_buf_addf(b, "  %-26s %s\n", left, doc);
}

static void add_options(struct mu_buf *b)
{
    (void)mu_buf_adds(b, "\nOptions:\n");
    for (size_t i = 0; i < MU_COUNT(options); i++) {
        const struct option *o = &options[i];
        struct mu_buf left;
        mu_buf_init(&left, b->mem);
        if (o->letter != 0)
            (void)mu_buf_addf(&left, "-%c, ", o->letter);
        (void)mu_buf_addf(&left, "--%s", o->name);
        if (is_optional(o))
            (void)mu_buf_addf(&left, "[=%s", o->value + 1);
        else if (o->value != NULL)
            (void)mu_buf_addf(&left, " %s", o->value);
        add_pair(b, mu_buf_cstr(&left), o->doc);
        mu_buf_fini(&left);
    }
}

static void add_argument(struct mu_buf *b, const struct verb *v)
{
    bool needed = v == &verbs[CLI_DRAIN];
    if (v->argument != NULL)
        (void)mu_buf_addf(b, " %s%s%s", needed ? "" : "[", v->argument, needed ? "" : "]");
}

void cli_help(struct mu_buf *b, enum cli_verb verb)
{
    if (verb != CLI_VERB_COUNT) {
        const struct verb *v = &verbs[verb];
        (void)mu_buf_addf(b, "Usage: muster %s", v->word);
        add_argument(b, v);
        (void)mu_buf_addf(b, " [options]\n\n%s%s.\n",
                          verb == CLI_DRAIN ? "Asks the server to " : "Shows ", v->doc);
    } else {
        (void)mu_buf_adds(b, "Usage: muster COMMAND [options]\n\nLooks at jobs and the server "
                             "where their nodes meet.\n\nCommands:\n");
        for (size_t i = 0; i < CLI_VERB_COUNT; i++) {
            struct mu_buf left;
            mu_buf_init(&left, b->mem);
            (void)mu_buf_adds(&left, verbs[i].word);
            add_argument(&left, &verbs[i]);
            add_pair(b, mu_buf_cstr(&left), verbs[i].doc);
            mu_buf_fini(&left);
        }
    }
    add_options(b);
    (void)mu_buf_addf(
        b,
        "\nExamples:\n"
        "  muster status                          what runs on this machine's server\n"
        "  muster status train --watch -r n1      follow one job until it ends\n"
        "  muster incidents train 3               all about the third end of a round\n"
        "  muster doctor --local                  is this machine fit for a job?\n"
        "  muster %-31s %s\n",
        verb == CLI_WORKERS ? "workers train --json | jq" : "nodes -r n1:29500 --json | jq",
        "for programs");
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
