/* The grammar: words of the command line and PET_ variables to one text per row of the table. What
 * a text means is the table's business; which rendezvous results, options_rdzv.c's. */
#include "agent/options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/options_table.h"
#include "base/words.h"

#define YEAR_NS (INT64_C(366) * 86400 * 1000000000) /* Longer is a slip of the finger. */
#define NAME_BYTES 64                               /* The longest flag has 24. */

/* --- failures and notes --- */

int option_fail(struct reading *rd, int exit_code, const char *fmt, ...)
{
    char text[sizeof rd->err->msg];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap); /* A cut sentence is still a sentence. */
    va_end(ap);
    rd->exit_code = exit_code;
    return mu_err_set(rd->err, -EINVAL, "%s", text);
}

int option_fail_as(struct reading *rd, int exit_code)
{
    rd->exit_code = exit_code;
    rd->err->code = -EINVAL;
    return -EINVAL;
}

void option_note(struct reading *rd, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap); /* A cut sentence is still a sentence. */
    va_end(ap);
    (void)mu_buf_addf(rd->notes, "%s\n", text); /* Lost bytes show in oom. */
}

/* --- small readers --- */

const char *option_env(char *const *envp, const char *name)
{
    size_t n = strlen(name);
    for (; envp != NULL && *envp != NULL; envp++)
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=')
            return *envp + n + 1;
    return NULL;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

int option_int(struct reading *rd,
               int exit_code,
               const char *text,
               int64_t min,
               int64_t max,
               const char *what,
               int64_t *ret)
{
    char plain[64];
    size_t n = 0;
    for (const char *p = text; *p != '\0' && n < sizeof plain - 1; p++) {
        bool joint = *p == '_' && p > text && is_digit(p[-1]) && is_digit(p[1]);
        if (!joint)
            plain[n++] = *p;
    }
    plain[n] = '\0';
    int r = mu_parse_i64(strlen(text) < sizeof plain ? plain : text, min, max, what, ret, rd->err);
    if (r == -ERANGE) /* A number, but a senseless one: found later, says torchrun. */
        return option_fail_as(rd, 1);
    return r < 0 ? option_fail_as(rd, exit_code) : 0;
}

/* "-5" and "-.5" are values, and programs: not flags. */
static bool looks_negative(const char *word)
{
    if (word[0] != '-')
        return false;
    const char *p = word + 1;
    size_t whole = strspn(p, "0123456789");
    if (p[whole] == '\0')
        return whole > 0;
    if (p[whole] != '.')
        return false;
    size_t part = strspn(p + whole + 1, "0123456789");
    return part > 0 && p[whole + 1 + part] == '\0';
}

/* --- names --- */

const struct option_row *option_find(const char *name)
{
    for (size_t i = 0; i < option_count; i++)
        if (strcmp(option_rows[i].name, name) == 0)
            return &option_rows[i];
    return NULL;
}

const struct option_row *option_row_of(const char *name)
{
    const struct option_row *row = option_find(name);
    MU_ASSERT(row != NULL);
    return row;
}

static const struct option_row *find_letter(char letter)
{
    for (size_t i = 0; i < option_count; i++)
        if (option_rows[i].letter == letter)
            return &option_rows[i];
    return NULL;
}

static int unknown_flag(struct reading *rd, const char *word, const char *name)
{
    const char *names[OPTIONS_MAX];
    char shown[64];
    for (size_t i = 0; i < option_count; i++)
        names[i] = option_rows[i].name;
    (void)mu_quote(shown, sizeof shown, mu_str_of(word, strcspn(word, "=")));
    const char *near = name != NULL ? mu_nearest(name, names, option_count) : NULL;
    if (near == NULL)
        return option_fail(rd, 2, "unknown flag %s: see --help", shown);
    return option_fail(rd, 2, "unknown flag %s: did you mean --%s?", shown, near);
}

/* A prefix that fits several: name the first two. */
static int ambiguous_flag(struct reading *rd, const char *word, const char *a, const char *b)
{
    char shown[64];
    return option_fail(rd, 2, "%s could mean --%s or --%s: write more of it",
                       mu_quote(shown, sizeof shown, mu_str_of(word, strcspn(word, "="))), a, b);
}

/* The row that `name` (dashes) is a unique prefix of, among torchrun's flags or among ours. */
static int
find_prefix(struct reading *rd, const char *word, const char *name, const struct option_row **ret)
{
    for (unsigned own = 0; own <= OPTION_OWN; own++) {
        const struct option_row *first = NULL;
        for (size_t i = 0; i < option_count; i++) {
            const struct option_row *row = &option_rows[i];
            if ((row->flags & OPTION_OWN) != own || strncmp(row->name, name, strlen(name)) != 0)
                continue;
            if (first != NULL)
                return ambiguous_flag(rd, word, first->name, row->name);
            first = row;
        }
        if (first != NULL) {
            *ret = first;
            return 0;
        }
    }
    return unknown_flag(rd, word, name);
}

/* --- words --- */

struct words {
    int argc;
    char *const *argv;
    int at; /* The next word. */
};

/* Is this word a value (or a program) and not a flag? */
static bool is_plain(const char *word)
{
    return word[0] != '-' || word[1] == '\0' || looks_negative(word);
}

static int take_value(struct reading *rd,
                      struct words *w,
                      const struct option_row *row,
                      const char *glued,
                      const char **ret)
{
    if (glued != NULL) {
        *ret = glued;
        return 0;
    }
    if (w->at < w->argc && is_plain(w->argv[w->at])) {
        *ret = w->argv[w->at++];
        return 0;
    }
    return option_fail(rd, 2, "--%s wants a value: --%s %s", row->name, row->name, row->value);
}

static bool is_word_of(const char *text, const char *list)
{
    size_t n = strlen(text);
    for (const char *p = list; n > 0; p++) {
        size_t len = strcspn(p, "|");
        if (len == n && strncmp(p, text, n) == 0)
            return true;
        p += len;
        if (*p == '\0')
            break;
    }
    return false;
}

static int keep(struct reading *rd, const struct option_row *row, const char *text)
{
    char shown[64];
    if ((row->flags & OPTION_ACTS) != 0)
        return row->set(rd, text, row->name);
    if ((row->flags & OPTION_WORDS) != 0 && !is_word_of(text, row->value))
        return option_fail(rd, 2, "--%s: %s is not one of %s", row->name,
                           mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))),
                           row->value);
    rd->text[row - option_rows] = text; /* The last one wins. */
    return 0;
}

static int read_long(struct reading *rd, struct words *w, const char *word)
{
    char name[NAME_BYTES];
    const char *p = word + 2;
    size_t n = strcspn(p, "=");
    const char *glued = p[n] == '=' ? p + n + 1 : NULL;
    if (n >= sizeof name)
        return unknown_flag(rd, word, NULL);
    for (size_t i = 0; i < n; i++)
        name[i] = p[i] == '_' ? '-' : p[i];
    name[n] = '\0';

    const struct option_row *row = option_find(name);
    if (row == NULL) {
        int r = find_prefix(rd, word, name, &row);
        if (r < 0)
            return r;
        MU_ASSERT(row != NULL);
    }
    const char *text = "1";
    if (row->value == NULL && glued != NULL)
        return option_fail(rd, 2, "--%s is a switch and takes no value", row->name);
    if (row->value != NULL) {
        int r = take_value(rd, w, row, glued, &text);
        if (r < 0)
            return r;
    }
    return keep(rd, row, text);
}

/* "-r3", "-t 3", "-m", "-mt3", "-r=3". */
static int read_short(struct reading *rd, struct words *w, const char *word)
{
    for (const char *p = word + 1; *p != '\0' && rd->o->mode == AGENT_RUN; p++) {
        const struct option_row *row = find_letter(*p);
        if (row == NULL && p > word + 1)
            return option_fail(rd, 2, "-%c is a switch and takes no value: see %s", p[-1], word);
        if (row == NULL)
            return unknown_flag(rd, word, NULL);
        const char *text = "1";
        const char *glued = p[1] == '=' ? p + 2 : p[1] != '\0' ? p + 1 : NULL;
        if (row->value != NULL) {
            int r = take_value(rd, w, row, glued, &text);
            if (r < 0)
                return r;
        }
        int r = keep(rd, row, text);
        if (r < 0 || row->value != NULL)
            return r;
    }
    return 0;
}

/* Flags up to the program. */
static int read_words(struct reading *rd, struct words *w)
{
    while (w->at < w->argc && rd->o->mode == AGENT_RUN) {
        const char *word = w->argv[w->at];
        if (strcmp(word, "--") == 0) {
            w->at++;
            break;
        }
        if (is_plain(word))
            break;
        w->at++;
        int r = word[1] == '-' ? read_long(rd, w, word) : read_short(rd, w, word);
        if (r < 0)
            return r;
    }
    if (rd->o->mode != AGENT_RUN)
        return 0;
    if (option_wants_service(rd) && w->at < w->argc)
        return option_fail(
            rd, 2, "--service takes no program: the jobs that are placed here bring theirs");
    if (option_wants_service(rd))
        return 0;
    if (w->at == w->argc)
        return option_fail(rd, 2,
                           "no program given: write it, and its arguments, behind the flags");
    if (w->argv[w->at][0] == '\0')
        return option_fail(rd, 2, "the program's name is empty");
    rd->o->program = w->argv[w->at];
    rd->o->args = w->argv + w->at + 1; /* Untouched: argv ends with NULL. */
    return 0;
}

static void pet_name(const struct option_row *row, char *ret)
{
    size_t n = 0;
    for (const char *p = "PET_"; *p != '\0'; p++)
        ret[n++] = *p;
    for (const char *p = row->name; *p != '\0'; p++)
        ret[n++] = *p == '-' ? '_' : (char)(*p - ('a' - 'A'));
    ret[n] = '\0';
}

/* A switch's variable is a whole number; not 0 is on. */
static int read_switch(struct reading *rd, const struct option_row *row, const char *what)
{
    int64_t v = 0;
    size_t i = (size_t)(row - option_rows);
    int r = option_int(rd, 1, rd->text[i], INT32_MIN, INT32_MAX, what, &v);
    if (r == 0 && v == 0)
        rd->text[i] = NULL;
    return r;
}

/* Every text that was given, in the table's order. */
static int read_values(struct reading *rd)
{
    for (size_t i = 0; i < option_count; i++) {
        const struct option_row *row = &option_rows[i];
        char what[NAME_BYTES + 8];
        (void)snprintf(what, sizeof what, "--%s", row->name);
        if (rd->text[i] == NULL && (row->flags & OPTION_NO_PET) == 0) {
            char variable[NAME_BYTES + 8];
            pet_name(row, variable);
            rd->text[i] = option_env(rd->envp, variable);
            rd->from_env[i] = rd->text[i] != NULL;
            if (rd->from_env[i])
                memcpy(what, variable, sizeof what);
            if (rd->from_env[i] && row->value == NULL) {
                int r = read_switch(rd, row, what);
                if (r < 0)
                    return r;
            }
        }
        if (rd->text[i] == NULL)
            continue;
        int r = row->set(rd, rd->text[i], what);
        if (r < 0)
            return r;
    }
    return 0;
}

/* --- what takes more than one flag to know --- */

static int resolve_program(struct reading *rd)
{
    if (rd->module && rd->no_python && !rd->run_path)
        return option_fail(rd, 1,
                           "--module and --no-python exclude each other: a module needs Python");
    rd->o->program_kind = rd->run_path    ? AGENT_PROGRAM_RUN_PATH
                          : rd->module    ? AGENT_PROGRAM_MODULE
                          : rd->no_python ? AGENT_PROGRAM_DIRECT
                                          : AGENT_PROGRAM_AUTO;
    const char *python = option_env(rd->envp, "PYTHON_EXEC");
    rd->o->python = python != NULL && python[0] != '\0' ? python : "python3";
    return 0;
}

static int resolve_nproc(struct reading *rd)
{
    const char *text = rd->nproc;
    const char *visible = option_env(rd->envp, "CUDA_VISIBLE_DEVICES");
    const char *what = "--nproc-per-node";
    bool is_auto = strcmp(text, "auto") == 0;
    int64_t n = 0;
    if (strcmp(text, "gpu") == 0 || is_auto)
        n = rd->machine->gpus(visible);
    if (n == 0 && strcmp(text, "gpu") == 0)
        return option_fail(rd, 1,
                           "%s=gpu: no GPU is visible here (no /dev/nvidia device, or "
                           "CUDA_VISIBLE_DEVICES hides them)",
                           what);
    if (strcmp(text, "xpu") == 0)
        return option_fail(rd, 1, "%s=xpu: Intel GPUs cannot be counted here: give a number", what);
    if (strcmp(text, "cpu") == 0 || (is_auto && n == 0))
        n = rd->machine->cpus();
    if (n > MU_WORKERS_MAX)
        n = MU_WORKERS_MAX;
    if (n == 0) {
        int r = option_int(rd, 1, text, 1, MU_WORKERS_MAX, what, &n);
        if (r < 0 && strpbrk(text, "0123456789") == NULL) {
            char shown[64];
            return option_fail(rd, 1, "%s: %s is not a whole number, nor one of cpu, gpu, auto",
                               what, mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
        }
        if (r < 0)
            return r;
    }
    rd->o->nproc = (uint32_t)n;
    return 0;
}

static int bad_map(struct reading *rd, const char *what, const char *text)
{
    char shown[64];
    return option_fail(rd, 1, "%s: %s is not one digit 0 to 3, nor RANK:DIGIT,RANK:DIGIT,…", what,
                       mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
}

/* As torchrun, which is silent about it: it may be meant for nodes with more workers. */
static void note_missing_rank(struct reading *rd, const char *what, int64_t rank)
{
    option_note(rd,
                "%s: local rank %lld has no effect: the workers of this node are 0 to %u "
                "(--nproc-per-node)",
                what, (long long)rank, rd->o->nproc - 1);
}

/* "3" or "0:1,1:3". Beyond torchrun: ranks may have several digits. */
static int read_map(struct reading *rd, const char *text, const char *what, uint8_t *map)
{
    memset(map, 0, MU_WORKERS_MAX);
    if (text[0] >= '0' && text[0] <= '3' && text[1] == '\0') {
        memset(map, text[0] - '0', MU_WORKERS_MAX);
        return 0;
    }
    for (const char *p = text;; p++) {
        size_t n = strspn(p, "0123456789");
        uint32_t rank = 0;
        for (size_t i = 0; i < n && rank < MU_WORKERS_MAX; i++)
            rank = rank * 10 + (uint32_t)(p[i] - '0');
        if (n == 0 || p[n] != ':' || p[n + 1] < '0' || p[n + 1] > '3')
            return bad_map(rd, what, text);
        if (rank < MU_WORKERS_MAX)
            map[rank] = (uint8_t)(p[n + 1] - '0');
        if (rank >= rd->o->nproc)
            note_missing_rank(rd, what, rank);
        p += n + 2;
        if (*p == '\0')
            return 0;
        if (*p != ',')
            return bad_map(rd, what, text);
    }
}

static bool any_of(const uint8_t *map, uint32_t nproc)
{
    for (uint32_t i = 0; i < nproc; i++)
        if (map[i] != 0)
            return true;
    return false;
}

/* The list of local ranks that may write to the console; the others are quiet. An empty one: all.
 */
static int read_filter(struct reading *rd, const char *text)
{
    struct agent_options *o = rd->o;
    char one[24];
    memset(o->quiet, text[0] != '\0', sizeof o->quiet);
    for (const char *p = text; *p != '\0';) {
        size_t n = strcspn(p, ",");
        int64_t rank = 0;
        size_t cut = n < sizeof one - 1 ? n : sizeof one - 1;
        memcpy(one, p, cut);
        one[cut] = '\0';
        int r = option_int(rd, 1, one, INT32_MIN, INT32_MAX, "--local-ranks-filter", &rank);
        if (r < 0)
            return r;
        if (rank >= 0 && rank < MU_WORKERS_MAX)
            o->quiet[rank] = 0;
        if (rank < 0 || rank >= o->nproc)
            note_missing_rank(rd, "--local-ranks-filter", rank);
        p += n + (p[n] == ',');
    }
    return 0;
}

static int resolve_output(struct reading *rd)
{
    struct agent_options *o = rd->o;
    o->no_files = o->log_dir != NULL && strcmp(o->log_dir, "/dev/null") == 0;
    o->line_prefix = option_env(rd->envp, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    int r = read_map(rd, rd->redirects_text, "--redirects", o->redirects);
    if (r == 0)
        r = read_map(rd, rd->tee_text, "--tee", o->tee);
    if (r == 0)
        r = read_filter(rd, rd->filter_text);
    if (r < 0)
        return r;
    if (o->no_files) { /* As with torchrun: no files, plain console. */
        memset(o->redirects, 0, sizeof o->redirects);
        memset(o->tee, 0, sizeof o->tee);
    }
    o->any_redirect = any_of(o->redirects, o->nproc);
    o->any_tee = any_of(o->tee, o->nproc);
    o->any_quiet = any_of(o->quiet, o->nproc);
    return 0;
}

static int resolve_log_level(struct reading *rd)
{
    const char *level = option_env(rd->envp, "LOGLEVEL");
    char shown[48];
    if (level != NULL && mu_log_level_parse(level, &rd->o->log_level) < 0)
        return option_fail(rd, 1, "LOGLEVEL: %s is not one of ERROR, WARNING, INFO, DEBUG",
                           mu_quote(shown, sizeof shown, mu_str_of(level, strlen(level))));
    return 0;
}

/* Here, where the place that it came from can be named. */
static int resolve_chaos(struct reading *rd)
{
    const char *what = rd->chaos != NULL ? "--chaos" : "MUSTER_CHAOS";
    const char *text = rd->chaos != NULL ? rd->chaos : option_env(rd->envp, "MUSTER_CHAOS");
    if (text == NULL)
        return 0;
    int r = chaos_parse(text, rd->machine->seed != NULL ? rd->machine->seed() : 1, what,
                        &rd->o->chaos, rd->err);
    return r == 0 ? 0 : option_fail_as(rd, 2);
}

static int resolve(struct reading *rd)
{
    static int (*const steps[])(struct reading *) = {
        option_take_surroundings, resolve_program, resolve_nproc,      resolve_output,
        resolve_log_level,        resolve_chaos,   option_resolve_rdzv};
    if (rd->o->service) {
        int r = resolve_log_level(rd);
        return r < 0 ? r : option_resolve_service(rd);
    }
    for (size_t i = 0; i < MU_COUNT(steps); i++) {
        int r = steps[i](rd);
        if (r < 0)
            return r;
    }
    return 0;
}

/* torchrun's defaults, and ours. */
static int set_defaults(struct reading *rd)
{
    *rd->o = (struct agent_options){.nodes_min = 1,
                                    .nodes_max = 1,
                                    .nproc = 1,
                                    .node_rank = -1,
                                    .run_id = "none",
                                    .role = "default",
                                    .is_host = -1,
                                    .join_timeout_ns = MU_JOIN_TIMEOUT_NS,
                                    .last_call_ns = MU_LAST_CALL_NS,
                                    .connect_timeout_ns = INT64_C(60000000000),
                                    .server_timeout_ns = INT64_C(60000000000),
                                    .last_lines = 10,
                                    .hang_hook_timeout_ns = INT64_C(10000000000),
                                    .shutdown_timeout_ns = MU_GRACE_NS,
                                    .health_timeout_ns = MU_HEALTH_TIMEOUT_NS,
                                    .health_interval_ns = MU_HEALTH_GAP_NS,
                                    .drain_timeout_ns = MU_DRAIN_NS,
                                    .log_bytes = UINT64_C(256) << 20,
                                    .log_bytes_all = UINT64_C(4) << 30,
                                    .monitor_interval_ns = INT64_C(100000000),
                                    .log_level = MU_WARN,
                                    .log_format = MU_LOG_TEXT};
    rd->backend = "static";
    rd->conf = "";
    rd->nproc = "1";
    rd->tee_text = "0";
    rd->redirects_text = "0";
    rd->filter_text = "";
    static const char list[] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
    int r = option_row_of("signals-to-handle")->set(rd, list, "--signals-to-handle");
    const char *grace = option_env(rd->envp, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    if (r == 0 && grace != NULL)
        r = option_row_of("shutdown-timeout")->set(rd, grace, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    static const char d_state[] = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
    const char *limit = option_env(rd->envp, d_state);
    if (r == 0 && limit != NULL && limit[0] != '\0' && limit[0] != '-' &&
        mu_parse_seconds(limit, 0, YEAR_NS, d_state, &rd->o->d_state_ns, rd->err) < 0)
        return option_fail_as(rd, 1);
    return r;
}

int agent_options_parse(struct agent_options *ret,
                        int argc,
                        char *const *argv,
                        char *const *envp,
                        const struct agent_machine *machine,
                        struct mu_buf *notes,
                        int *ret_exit,
                        struct mu_err *err)
{
    MU_ASSERT(option_count <= OPTIONS_MAX);
    struct mu_err unused;
    struct reading rd = {.o = ret,
                         .machine = machine,
                         .envp = envp,
                         .notes = notes,
                         .err = err != NULL ? err : &unused,
                         .exit_code = 1};
    struct words w = {.argc = argc, .argv = argv, .at = 1};
    *ret = (struct agent_options){.mode = AGENT_RUN};
    int r = read_words(&rd, &w);
    const char *program = ret->program;
    char *const *args = ret->args;
    if (r == 0 && ret->mode == AGENT_RUN) {
        r = set_defaults(&rd);
        ret->program = program;
        ret->args = args;
        if (r == 0)
            r = read_values(&rd);
        if (r == 0)
            r = resolve(&rd);
        if (r == 0 && notes->oom)
            r = mu_err_set(rd.err, -ENOMEM, "no memory");
    }
    if (r < 0)
        *ret_exit = rd.exit_code;
    return r;
}
