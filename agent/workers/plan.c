/* One round's argv and environments, as torchrun 2.13.0 gives them, and two variables of ours for
 * workers built on the SDK; see plan.h. The inherited variables are pointers that all workers
 * share; what all have in common is printed once; a worker's own are four or five strings. */
#include "agent/workers/plan.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/workers/arena.h"
#include "agent/workers/errfile.h"
#include "agent/workers/lines.h"
#include "agent/workers/logs.h"
#include "agent/workers/numa.h"
#include "agent/workers/program.h"
#include "base/mem.h"
#include "base/check.h"
#include "base/cleanup.h"

/* Every variable that is ours to set, whatever we inherited. */
#define OWN_NAMES(X)                                                                               \
    X("LOCAL_RANK")                                                                                \
    X("RANK")                                                                                      \
    X("GROUP_RANK")                                                                                \
    X("ROLE_RANK")                                                                                 \
    X("ROLE_NAME")                                                                                 \
    X("ROLE_WORLD_SIZE")                                                                           \
    X("LOCAL_WORLD_SIZE")                                                                          \
    X("WORLD_SIZE")                                                                                \
    X("GROUP_WORLD_SIZE")                                                                          \
    X("MASTER_ADDR")                                                                               \
    X("MASTER_PORT")                                                                               \
    X("TORCHELASTIC_RESTART_COUNT")                                                                \
    X("TORCHELASTIC_MAX_RESTARTS")                                                                 \
    X("TORCHELASTIC_RUN_ID")                                                                       \
    X("TORCHELASTIC_USE_AGENT_STORE")                                                              \
    X("TORCHELASTIC_ERROR_FILE")                                                                   \
    X("TORCHELASTIC_SIGNALS_TO_HANDLE")                                                            \
    X("MUSTER_AGENT_FD")                                                                           \
    X("MUSTER_ROUND")

enum {
    COMMON_MAX = 18, /* Strings of common_env(); asserted there. */
    OWN_MAX = 5      /* And of own_env(). */
};

struct plan {
    struct plan_config config;
    struct program program;
    struct logs logs;
    struct arena lasting; /* For the plan's life. */
    struct arena arena;   /* For one round. */
    char **inherited;
    uint32_t inherited_count;
    uint32_t arg_count;
    bool sets_omp;
    bool sets_nccl;
    const char **devices; /* By local rank, with --virtual-local-rank and a list; else NULL. */
    char warning[200];
    struct mu_str *copy_words[2];
    size_t copy_word_count[2];
    struct numa numa;
};

/* --- once per agent --- */

static bool has_name(const char *entry, const char *name)
{
    size_t n = strlen(name);
    return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

static bool is_own(const struct plan_config *c, const char *entry)
{
    static const char *const names[] = {
#define X(name) name,
        OWN_NAMES(X)
#undef X
    };
    for (size_t i = 0; i < MU_COUNT(names); i++) {
        if (has_name(entry, names[i]))
            return true;
    }
    return c->virtual_local_rank && has_name(entry, "CUDA_VISIBLE_DEVICES");
}

static int inherit(struct plan *p)
{
    const struct plan_config *c = &p->config;
    size_t n = 0;
    while (c->environment[n] != NULL)
        n++;
    p->inherited = arena_alloc(&p->lasting, (n + 1) * sizeof(char *));
    if (p->inherited == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!is_own(c, c->environment[i]))
            p->inherited[p->inherited_count++] = c->environment[i];
    }
    p->sets_nccl = program_getenv(c->environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING") == NULL;
    p->sets_omp = c->nproc > 1 && program_getenv(c->environment, "OMP_NUM_THREADS") == NULL;
    if (p->sets_omp)
        (void)snprintf(
            p->warning, sizeof(p->warning),
            "OMP_NUM_THREADS is not set: each of the %u workers gets 1, so that they do not crowd "
            "each other out; set it to what your program needs",
            c->nproc);
    return 0;
}

/* The caller's CUDA_VISIBLE_DEVICES, one entry per worker, blanks cut. */
static int split_devices(struct plan *p, struct mu_err *err)
{
    const char *list = program_getenv(p->config.environment, "CUDA_VISIBLE_DEVICES");
    uint32_t nproc = p->config.nproc;
    uint32_t count = 0;
    if (!p->config.virtual_local_rank || list == NULL)
        return 0;
    char *rest = arena_printf(&p->lasting, "%s", list);
    p->devices = arena_alloc(&p->lasting, nproc * sizeof(char *));
    if (rest == NULL || p->devices == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the workers' devices");
    for (char *word = strsep(&rest, ","); word != NULL; word = strsep(&rest, ",")) {
        word += strspn(word, " \t");
        size_t n = strlen(word);
        while (n > 0 && isspace((unsigned char)word[n - 1]))
            word[--n] = '\0';
        if (count < nproc)
            p->devices[count] = word;
        count++;
    }
    if (count < nproc)
        return mu_err_set(err, -EINVAL,
                          "--virtual-local-rank: CUDA_VISIBLE_DEVICES='%.60s' has %u entries, %u "
                          "workers need one each",
                          list, count, nproc);
    return 0;
}

/* Which streams of worker i go to files, and which of them to the console too. */
static unsigned streams_of(const uint8_t *map, uint32_t i)
{
    return map != NULL ? map[i] : 0;
}

static unsigned files_of(const struct plan_config *c, uint32_t i)
{
    return streams_of(c->redirects, i) | streams_of(c->tee, i);
}

static bool has_output(const struct plan_config *c)
{
    for (uint32_t i = 0; i < c->nproc; i++) {
        if (files_of(c, i) != 0)
            return true;
    }
    return false;
}

/* "a,b,,c" is "a" and "b,c". */
static int split_words(struct plan *p, int which)
{
    const char *text = p->config.copy_words[which];
    if (text == NULL)
        return 0;
    size_t n = strlen(text);
    struct mu_str *words = arena_alloc(&p->lasting, (n + 1) * sizeof(*words));
    char *to = arena_alloc(&p->lasting, n + 1);
    if (words == NULL || to == NULL)
        return -ENOMEM;
    size_t count = 0;
    const char *start = to;
    for (const char *at = text;; at++) {
        bool is_comma = at[0] == ',' && at[1] == ',';
        if (*at != '\0' && (*at != ',' || is_comma)) {
            *to++ = *at;
            at += is_comma;
            continue;
        }
        words[count++] = mu_str_of(start, (size_t)(to - start));
        start = to;
        if (*at == '\0')
            break;
    }
    p->copy_words[which] = words;
    p->copy_word_count[which] = count;
    return 0;
}

static int prepare(struct plan *p, struct mu_err *err)
{
    const struct plan_config *c = &p->config;
    struct logs_config l = {
        .dir = c->log_dir,
        .tmpdir = program_getenv(c->environment, "TMPDIR"),
        .run_id = c->run_id,
        .nproc = c->nproc,
        .has_output = has_output(c),
    };
    while (c->args != NULL && c->args[p->arg_count] != NULL)
        p->arg_count++;
    if (inherit(p) < 0 || split_words(p, 0) < 0 || split_words(p, 1) < 0)
        return mu_err_set(err, -ENOMEM, "no memory for the workers' environment");
    int r = split_devices(p, err);
    if (r == 0)
        r = program_resolve(c, &p->program, err);
    if (r == 0 && c->numa != NULL)
        r = numa_bind(&p->numa, c->numa, c->nproc,
                      program_getenv(c->environment, "CUDA_VISIBLE_DEVICES"), "", err);
    if (r == 0)
        r = logs_init(&p->logs, &l, err);
    return r;
}

int plan_new(const struct plan_config *c, struct plan **ret, struct mu_err *err)
{
    MU_ASSERT(c->nproc >= 1 && c->nproc <= MU_WORKERS_MAX);
    struct plan *p = mu_zalloc(mu_mem_default(), sizeof(*p));
    if (p == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the workers' plan");
    p->config = *c;
    int r = prepare(p, err);
    if (r < 0) {
        plan_free(p);
        return r;
    }
    *ret = p;
    return 0;
}

void plan_free(struct plan *p)
{
    if (p == NULL)
        return;
    numa_fini(&p->numa);
    arena_fini(&p->lasting);
    arena_fini(&p->arena);
    free(p);
}

const char *plan_warning(const struct plan *p, unsigned index)
{
    const char *texts[] = {p->warning, p->program.warning, p->numa.warning};
    for (size_t i = 0; i < MU_COUNT(texts); i++) {
        if (texts[i][0] != '\0' && index-- == 0)
            return texts[i];
    }
    return NULL;
}

const char *plan_title(const struct plan *p)
{
    return p->config.kind == PLAN_RUN_PATH ? "run_script_path" : p->config.program;
}

/* --- arguments --- */

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Bytes of the `$local_rank` or `${local_rank}` that starts at `at`; 0: there is none. */
static size_t macro_at(const char *at)
{
    static const char bare[] = "$local_rank";
    static const char braced[] = "${local_rank}";
    if (strncmp(at, braced, sizeof(braced) - 1) == 0)
        return sizeof(braced) - 1;
    if (strncmp(at, bare, sizeof(bare) - 1) == 0 && !is_name_char(at[sizeof(bare) - 1]))
        return sizeof(bare) - 1;
    return 0;
}

/* `$local_rank` and `${local_rank}` become the local rank, `$$` becomes `$`, every other `$` stays.
 * As torchrun does. */
static char *fill_in(struct arena *a, const char *text, const char *rank)
{
    size_t rank_bytes = strlen(rank);
    /* The shortest macro has 11 characters, a rank at most 10: the text never grows. */
    char *ret = arena_alloc(a, strlen(text) + 1);
    char *to = ret;
    while (ret != NULL && *text != '\0') {
        size_t n = macro_at(text);
        if (n > 0) {
            memcpy(to, rank, rank_bytes);
            to += rank_bytes;
            text += n;
        } else {
            text += text[0] == '$' && text[1] == '$';
            *to++ = *text++;
        }
    }
    if (ret != NULL)
        *to = '\0';
    return ret;
}

static const char *word_for(struct arena *a, const char *word, const char *rank)
{
    return strchr(word, '$') == NULL ? word : fill_in(a, word, rank);
}

/* execve() takes pointers that could write, and does not write. */
static char *as_argument(const char *word)
{
    union {
        const char *read;
        char *write;
    } u = {.read = word};
    return u.write;
}

static char *const *build_argv(struct plan *p, uint32_t local_rank)
{
    const struct program *g = &p->program;
    char **argv =
        arena_alloc(&p->arena, ((size_t)g->head_count + p->arg_count + 1) * sizeof(*argv));
    char rank[12];
    size_t n = 0;
    if (argv == NULL)
        return NULL;
    (void)snprintf(rank, sizeof(rank), "%u", local_rank);
    for (int i = 0; i < g->head_count; i++) {
        bool is_script = g->script_last && i == g->head_count - 1;
        argv[n++] = as_argument(is_script ? word_for(&p->arena, g->head[i], rank) : g->head[i]);
    }
    for (uint32_t i = 0; i < p->arg_count; i++)
        argv[n++] = as_argument(word_for(&p->arena, p->config.args[i], rank));
    for (size_t i = 0; i < n; i++) {
        if (argv[i] == NULL)
            return NULL; /* No memory for that word. */
    }
    argv[n] = NULL;
    return argv;
}

/* --- environment --- */

/* One more string; a NULL (no memory) is found by the caller, who looks at the last count. */
struct env {
    char **list;
    uint32_t count;
    bool oom;
};

static void put(struct env *e, char *entry)
{
    e->list[e->count++] = entry;
    e->oom = e->oom || entry == NULL;
}

/* What all workers of the round have in common: inherited and set. Room for OWN_MAX more is kept.
 */
static struct env common_env(struct plan *p, const struct plan_round *r)
{
    const struct plan_config *c = &p->config;
    struct arena *a = &p->arena;
    struct env e = {.count = p->inherited_count};
    e.list = arena_alloc(a, (p->inherited_count + COMMON_MAX + OWN_MAX + 1) * sizeof(char *));
    if (e.list == NULL)
        return (struct env){.oom = true};
    if (e.count > 0)
        memcpy(e.list, p->inherited, e.count * sizeof(char *));
    put(&e, arena_printf(a, "GROUP_RANK=%u", r->node_rank));
    put(&e, arena_printf(a, "GROUP_WORLD_SIZE=%u", r->node_count));
    put(&e, arena_printf(a, "ROLE_NAME=%s", c->role));
    put(&e, arena_printf(a, "ROLE_WORLD_SIZE=%u", r->role_world));
    put(&e, arena_printf(a, "LOCAL_WORLD_SIZE=%u", c->nproc));
    put(&e, arena_printf(a, "WORLD_SIZE=%u", r->world));
    put(&e, arena_printf(a, "MASTER_ADDR=%s", r->lead_addr));
    put(&e, arena_printf(a, "MASTER_PORT=%u", r->lead_port));
    put(&e, arena_printf(a, "TORCHELASTIC_RESTART_COUNT=%u", r->restarts));
    put(&e, arena_printf(a, "TORCHELASTIC_MAX_RESTARTS=%u", c->max_restarts));
    put(&e, arena_printf(a, "TORCHELASTIC_RUN_ID=%s", c->run_id));
    put(&e, arena_printf(a, "TORCHELASTIC_USE_AGENT_STORE=%s",
                         r->rank0_serves_store ? "False" : "True"));
    put(&e, arena_printf(a, "TORCHELASTIC_SIGNALS_TO_HANDLE=%s", c->signals_to_handle));
    if (p->sets_nccl)
        put(&e, arena_printf(a, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"));
    if (p->sets_omp)
        put(&e, arena_printf(a, "OMP_NUM_THREADS=1"));
    if (c->has_sockets) {
        put(&e, arena_printf(a, "MUSTER_AGENT_FD=%d", TALK_WORKER_FD));
        put(&e, arena_printf(a, "MUSTER_ROUND=%u", r->round));
    }
    MU_ASSERT(e.count <= p->inherited_count + COMMON_MAX);
    return e;
}

static void put_device(struct plan *p, struct env *e, uint32_t i)
{
    if (p->devices != NULL)
        put(e, arena_printf(&p->arena, "CUDA_VISIBLE_DEVICES=%s", p->devices[i]));
    else
        put(e, arena_printf(&p->arena, "CUDA_VISIBLE_DEVICES=%u", i));
}

static char *const *build_envp(struct plan *p,
                               const struct plan_round *r,
                               const struct env *common,
                               const char *attempt,
                               uint32_t i)
{
    struct arena *a = &p->arena;
    struct env e = {.list = arena_alloc(a, (common->count + OWN_MAX + 1) * sizeof(char *)),
                    .count = common->count};
    if (e.list == NULL)
        return NULL;
    memcpy(e.list, common->list, common->count * sizeof(char *));
    bool is_virtual = p->config.virtual_local_rank;
    put(&e, arena_printf(a, "LOCAL_RANK=%u", is_virtual ? 0 : i));
    put(&e, arena_printf(a, "RANK=%u", r->rank_base + i));
    put(&e, arena_printf(a, "ROLE_RANK=%u", r->role_rank_base + i));
    if (p->logs.none)
        put(&e, arena_printf(a, "TORCHELASTIC_ERROR_FILE="));
    else
        put(&e, arena_printf(a, "TORCHELASTIC_ERROR_FILE=%s/%u/error.json", attempt, i));
    if (is_virtual)
        put_device(p, &e, i);
    MU_ASSERT(e.count <= common->count + OWN_MAX);
    e.list[e.count] = NULL;
    return e.oom ? NULL : e.list;
}

/* --- a round --- */

/* The file of a stream, /dev/null for one that may not show, or NULL. */
static int path_for(
    struct plan *p, const char *attempt, enum plan_streams stream, uint32_t i, const char **ret)
{
    bool quiet = p->config.quiet != NULL && p->config.quiet[i] != 0;
    *ret = quiet ? "/dev/null" : NULL;
    if (p->logs.none || (files_of(&p->config, i) & (unsigned)stream) == 0)
        return 0;
    *ret = arena_printf(&p->arena, "%s/%u/%s.log", attempt, i,
                        stream == PLAN_STDOUT ? "stdout" : "stderr");
    return *ret == NULL ? -ENOMEM : 0;
}

/* The files of one stream, by local rank; NULL without any. */
static int
build_paths(struct plan *p, const char *attempt, enum plan_streams stream, const char *const **ret)
{
    *ret = NULL;
    if ((p->logs.none || !has_output(&p->config)) && p->config.quiet == NULL)
        return 0;
    const char **paths = arena_alloc(&p->arena, p->config.nproc * sizeof(*paths));
    if (paths == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->config.nproc; i++) {
        if (path_for(p, attempt, stream, i, &paths[i]) < 0)
            return -ENOMEM;
    }
    *ret = paths;
    return 0;
}

/* Streams of worker i that come to the console with a prefix. */
static uint8_t shown_of(const struct plan *p, uint32_t i)
{
    const struct plan_config *c = &p->config;
    unsigned tee = p->logs.none ? 0 : streams_of(c->tee, i);
    unsigned plain = c->label ? ~(p->logs.none ? 0 : files_of(c, i)) & 3U : 0;
    return (uint8_t)(c->quiet != NULL && c->quiet[i] != 0 ? 0 : tee | plain);
}

static const char *build_prefix(struct plan *p, const struct plan_round *r, uint32_t i)
{
    const struct plan_config *c = &p->config;
    if (c->line_prefix == NULL || c->line_prefix[0] == '\0')
        return arena_printf(&p->arena, "[%s%u]:", c->role, i);
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    lines_fill_template(
        &b, c->line_prefix,
        &(struct lines_names){.role_name = c->role, .rank = r->rank_base + i, .local_rank = i});
    return b.oom ? NULL : arena_printf(&p->arena, "%s", mu_buf_cstr(&b));
}

static int build_copies(struct plan *p, const char *attempt, struct work_round *ret)
{
    static const char *const names[] = {"stdout", "stderr"};
    ret->copied = p->config.tee;
    for (int i = 0; i < 2 && !p->logs.none && p->config.tee != NULL; i++) {
        ret->copy_words[i] = p->copy_words[i];
        ret->copy_word_count[i] = p->copy_word_count[i];
        if (p->copy_word_count[i] == 0)
            continue;
        ret->copy_path[i] = arena_printf(&p->arena, "%s/filtered_%s.log", attempt, names[i]);
        if (ret->copy_path[i] == NULL)
            return -ENOMEM;
    }
    return 0;
}

/* What passes through us. */
static int
build_shown(struct plan *p, const struct plan_round *r, const char *attempt, struct work_round *ret)
{
    uint32_t nproc = p->config.nproc;
    if (p->config.tee == NULL && !p->config.label)
        return 0;
    uint8_t *shown = arena_alloc(&p->arena, nproc);
    const char **prefix = arena_alloc(&p->arena, nproc * sizeof(*prefix));
    if (shown == NULL || prefix == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < nproc; i++) {
        shown[i] = shown_of(p, i);
        prefix[i] = build_prefix(p, r, i);
        if (prefix[i] == NULL)
            return -ENOMEM;
    }
    ret->shown = shown;
    ret->prefix = prefix;
    return build_copies(p, attempt, ret);
}

static int build(struct plan *p, const struct plan_round *r, struct work_round *ret)
{
    char attempt[LOGS_PATH_BYTES];
    uint32_t nproc = p->config.nproc;
    char *const **argv = arena_alloc(&p->arena, nproc * sizeof(*argv));
    char *const **envp = arena_alloc(&p->arena, nproc * sizeof(*envp));
    struct env common = common_env(p, r);
    if (argv == NULL || envp == NULL || common.oom)
        return -ENOMEM;
    logs_attempt_path(&p->logs, attempt);
    for (uint32_t i = 0; i < nproc; i++) {
        argv[i] = build_argv(p, i);
        envp[i] = build_envp(p, r, &common, attempt, i);
        if (argv[i] == NULL || envp[i] == NULL)
            return -ENOMEM;
    }
    ret->argv = argv;
    ret->envp = envp;
    ret->cpus = numa_masks(&p->numa);
    ret->cpus_bytes = NUMA_MASK_BYTES;
    int code = build_paths(p, attempt, PLAN_STDOUT, &ret->stdout_path);
    if (code == 0)
        code = build_paths(p, attempt, PLAN_STDERR, &ret->stderr_path);
    return code < 0 ? code : build_shown(p, r, attempt, ret);
}

int plan_build(struct plan *p,
               const struct plan_round *r,
               struct work_round *ret,
               struct mu_err *err)
{
    struct work_round round = {
        .round = r->round,
        .restarts = r->restarts,
        .nproc = p->config.nproc,
        .program = p->program.path,
    };
    arena_reset(&p->arena);
    p->logs.attempt = r->restarts;
    int code = build(p, r, &round);
    if (code < 0)
        return mu_err_set(err, code, "no memory for the environment of %u workers", round.nproc);
    *ret = round;
    return 0;
}

int plan_make_folders(struct plan *p, struct mu_err *err)
{
    return logs_make(&p->logs, err);
}

const char *plan_log_base(const struct plan *p, bool *ret_in_memory)
{
    *ret_in_memory = p->logs.in_memory;
    return p->logs.is_default ? p->logs.base : NULL;
}

void plan_cleanup(struct plan *p)
{
    logs_cleanup(&p->logs);
}

void plan_read_error(struct plan *p, uint32_t local_rank, struct plan_error *ret)
{
    char path[LOGS_PATH_BYTES];
    char lasting[LOGS_PATH_BYTES];
    *ret = (struct plan_error){0};
    if (!logs_error_path(&p->logs, local_rank, false, path))
        return;
    (void)logs_error_path(&p->logs, local_rank, true, lasting);
    errfile_read(path, ret);
    const char *shown = path;
    if (ret->found && strcmp(path, lasting) != 0 && logs_make_parents(lasting, 0700) == 0 &&
        errfile_copy(path, lasting) == 0)
        shown = lasting;
    if (ret->found)
        (void)snprintf(ret->path, sizeof(ret->path), "%.*s", (int)sizeof(ret->path) - 1, shown);
}

int plan_write_stacks(const struct plan *p,
                      uint32_t local_rank,
                      const char *text,
                      struct mu_err *err)
{
    char path[LOGS_PATH_BYTES];
    static const char name[] = "stacks.log";
    if (!logs_error_path(&p->logs, local_rank, false, path))
        return 0;
    char *last = strrchr(path, '/') + 1;
    MU_ASSERT(strcmp(last, "error.json") == 0);
    memcpy(last, name, sizeof name); /* As long as the other one. */
    int r = errfile_write(path, text, strlen(text));
    return r < 0 ? mu_err_set(err, r, "write '%.150s': %s", path, strerror(-r)) : 0;
}
