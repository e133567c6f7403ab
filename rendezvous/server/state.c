/* Jobs kept over the server's death, with --state-dir; see docs/architecture.md "What a server
 * keeps".
 *
 * What a step of a job changes is noted as rows that are due. At the end of a turn all that is due,
 * of all jobs, is written in one transaction by a thread of libuv's pool, so that a disk never
 * stops the loop; meanwhile the next lot gathers. A lot has a number. Messages that tell a decision
 * wait until the lot that holds it is safe; beats are answered always.
 *
 * A disk that is full, gone or slow stops no job: what waited goes out, status and one line in the
 * log say that nothing is kept, and everything is written anew as soon as that works. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <utlist.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/module.h"
#include "rendezvous/server/internal.h"
#include "rendezvous/server/pool.h"
#include "rendezvous/server/state_module.h"

#define MODULE "muster-state.so"
#define FILE_NAME "rdzv.db"
#define LOCK_NAME "rdzv.lock"
/* Nobody's message waits for a disk for longer: a lease would be over. */
#define HOLD_NS (2 * MU_NS_PER_S)
/* After a failure. */
#define RETRY_NS (5 * MU_NS_PER_S)

/* What is written in one transaction. The worker's until it is done. */
struct lot {
    uint64_t number;
    bool durable;
    bool unread;              /* What lies there is put aside first, */
    struct mu_err unread_why; /* and why. */
    struct srv_state_op *ops;
    size_t count;
    size_t cap;
    struct mu_buf hellos; /* Texts of the nodes' rows. */
    int r;
    struct mu_err err;
};

struct state {
    struct srv *srv;
    char *path;
    int lock_fd;
    const struct srv_state_module *module;
    struct srv_state *db; /* The worker's while `writing`, as what follows. */
    struct stat place;    /* Which file it is. */
    uv_work_t work;
    uv_timer_t timer; /* A wait that lasts too long, or the next attempt. */
    bool has_timer;
    bool writing;
    bool closing;
    struct lot lot;      /* That is written. */
    uint64_t gathering;  /* Number of the one that is due. */
    uint64_t safe;       /* Of the last one for which nobody waits any more. */
    uint64_t pool_hold;  /* What the pool says waits for this one; 0: it does not. */
    bool due;            /* There is something in it. */
    bool durable_due;    /* And it holds a decision. */
    bool drains_due;     /* The hosts that are drained are in it. */
    bool unread;         /* What lies there could not be read. */
    bool anew;           /* Every row is due: what the file holds is not known, or old. */
    int64_t retry_at_ns; /* After a failure; 0: there was none. */
    struct mu_err why;   /* Of that failure. */
    char sentence[320];
    int64_t next_id;
    struct mu_buf dropped; /* Numbers of jobs whose rows have to go. */
    struct srv_job *loading;
    bool live_round;
};

/* --- failure, said once --- */

static bool is_failing(const struct state *st)
{
    return st->retry_at_ns != 0;
}

static void fails(struct state *st, const struct mu_err *why)
{
    bool news = !is_failing(st);
    char shown[sizeof why->msg + 16];
    st->why = *why;
    st->anew = true;
    st->due = true;
    st->retry_at_ns = mu_now_ns() + RETRY_NS;
    (void)snprintf(st->sentence, sizeof st->sentence, "not kept: %s", why->msg);
    events_changed(st->srv);
    if (news)
        mu_log(MU_ERROR, "state.failed",
               "error=%s text=\"jobs go on, but a restart of this server would not know of what "
               "happened since; trying again every %d s\"",
               mu_quote(shown, sizeof shown, mu_str_of(why->msg, strlen(why->msg))),
               (int)(RETRY_NS / MU_NS_PER_S));
}

static void works_again(struct state *st)
{
    if (!is_failing(st))
        return;
    st->retry_at_ns = 0;
    st->sentence[0] = '\0';
    events_changed(st->srv);
    mu_log(MU_INFO, "state.kept", "path=\"%s\" text=\"jobs are kept again\"", st->path);
}

const char *state_sentence(const struct srv *s)
{
    if (s->state == NULL)
        return NULL;
    return s->state->sentence[0] != '\0' ? s->state->sentence : "kept";
}

/* --- the file --- */

/* The file, its log and the index of that: put aside together, for whoever wants to look. Returns
 * false when there was none. */
static bool put_aside(struct state *st, const char *word, const char *text)
{
    static const char *const tails[] = {"-wal", "-shm", ""};
    char from[MU_DIR_BYTES + 64];
    char to[MU_DIR_BYTES + 128];
    char shown[sizeof st->why.msg + 16];
    bool was_there = false;
    long long now = (long long)(mu_unix_ms() / 1000);
    for (size_t i = 0; i < MU_COUNT(tails); i++) {
        (void)snprintf(from, sizeof from, "%s%s", st->path, tails[i]);
        (void)snprintf(to, sizeof to, "%s.%s-%lld%s", st->path, word, now, tails[i]);
        was_there = rename(from, to) == 0; /* Of the last one, the file itself. */
    }
    if (was_there)
        mu_log(MU_ERROR, "state.aside",
               "error=%s moved_to=\"%s\" text=\"what it held is not known here; of jobs that live "
               "their agents tell, as without --state-dir\"",
               mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))), to);
    return was_there;
}

/* A room's rows as columns. */
static const struct job_field pool_fields[] = {
#define INT(name, min, max) {#name, offsetof(struct pool_row, name), 0, (min), (max)},
#define STR(name, bytes) {#name, offsetof(struct pool_row, name), (bytes), 0, 0},
#define BIG(name) {#name, offsetof(struct pool_row, name), JOB_FIELD_BLOB, 0, 0},
    POOL_ROW_FIELDS(INT, STR, BIG)
#undef INT
#undef STR
#undef BIG
};

static const struct job_field drain_fields[] = {
#define INT(name, min, max) {#name, offsetof(struct pool_drain_row, name), 0, (min), (max)},
#define STR(name, bytes) {#name, offsetof(struct pool_drain_row, name), (bytes), 0, 0},
    POOL_DRAIN_ROW_FIELDS(INT, STR)
#undef INT
#undef STR
};

static int open_file(struct state *st, struct mu_err *err)
{
    const struct job_fields fields[SRV_STATE_TABLE_COUNT] = {
        [SRV_STATE_JOBS] = job_row_fields,
        [SRV_STATE_NODES] = job_node_row_fields,
        [SRV_STATE_INCIDENTS] = job_incident_fields,
        [SRV_STATE_POOL] = {pool_fields, MU_COUNT(pool_fields)},
        [SRV_STATE_DRAINS] = {drain_fields, MU_COUNT(drain_fields)},
    };
    struct mu_err damage = {0};
    int r = st->module->open(st->path, fields, &st->db, &damage);
    if (r == -EBADMSG) {
        (void)put_aside(st, "damaged", damage.msg);
        r = st->module->open(st->path, fields, &st->db, &damage);
    }
    if (r == 0 && stat(st->path, &st->place) < 0)
        st->place = (struct stat){0}; /* Gone already: the next lot finds that. */
    if (r < 0)
        *err = damage;
    return r;
}

/* Written into a file that has no name any more, rows are lost with this process. */
static int check_place(const struct state *st, struct mu_err *err)
{
    struct stat now;
    if (stat(st->path, &now) < 0)
        return mu_err_set(err, -ESTALE, "%s was removed: %s", st->path, strerror(errno));
    if (now.st_dev != st->place.st_dev || now.st_ino != st->place.st_ino)
        return mu_err_set(err, -ESTALE, "%s was replaced by another file", st->path);
    return 0;
}

static void close_file(struct state *st)
{
    if (st->db != NULL)
        st->module->close(st->db);
    st->db = NULL;
}

/* One server a folder: it is told which other one is there. */
static int lock_folder(struct state *st, const char *dir, struct mu_err *err)
{
    char path[MU_DIR_BYTES + 64];
    char pid[24] = "";
    (void)snprintf(path, sizeof path, "%s/" LOCK_NAME, dir);
    st->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (st->lock_fd < 0)
        return mu_err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (flock(st->lock_fd, LOCK_EX | LOCK_NB) == 0) {
        int n = snprintf(pid, sizeof pid, "%-20ld\n", (long)getpid());
        (void)!pwrite(st->lock_fd, pid, (size_t)n, 0); /* It only names us to another one. */
        return 0;
    }
    ssize_t n = pread(st->lock_fd, pid, sizeof pid - 1, 0);
    pid[n > 0 ? strspn(pid, "0123456789") : 0] = '\0';
    (void)close(st->lock_fd);
    st->lock_fd = -1;
    return mu_err_set(err, -EADDRINUSE,
                      "--state-dir: '%.120s' is used by another rdzv-server%s%s%s: give each its "
                      "own",
                      dir, pid[0] != '\0' ? " (pid " : "", pid, pid[0] != '\0' ? ")" : "");
}

static int load_module(struct state *st, struct mu_err *err)
{
    void *lib = mu_module_open(NULL, MODULE);
    if (lib == NULL) {
        const char *why = dlerror();
        return mu_err_set(err, -ENOENT,
                          "--state-dir needs " MODULE ", which cannot be opened: %.100s",
                          why != NULL ? why : "");
    }
    st->module = dlsym(lib, SRV_STATE_SYMBOL);
    if (st->module == NULL || st->module->abi != SRV_STATE_ABI)
        return mu_err_set(err, -ENOEXEC,
                          MODULE " is of another version than rdzv-server: install both from one "
                                 "build");
    return 0;
}

static bool make_folder(const char *dir, struct mu_err *err)
{
    if (mkdir(dir, 0700) == 0 || errno == EEXIST)
        return true;
    (void)mu_err_set(err, -errno, "--state-dir: make '%.120s': %s%s", dir, strerror(errno),
                     errno == ENOENT ? ": make the folder that it is in first" : "");
    return false;
}

int state_open(struct srv *s, struct mu_err *err)
{
    struct mu_err why = {0};
    if (!s->config.keep_jobs)
        return 0;
    struct state *st = mu_zalloc(mu_mem_default(), sizeof *st);
    struct mu_buf path;
    mu_buf_init(&path, mu_mem_default());
    (void)mu_buf_addf(&path, "%s/" FILE_NAME, s->state_dir);
    if (st != NULL && !path.oom)
        st->path = mu_strdup(mu_mem_default(), mu_buf_cstr(&path));
    mu_buf_fini(&path);
    s->state = st;
    if (st == NULL || st->path == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for a server");
    st->srv = s;
    st->lock_fd = -1;
    st->gathering = 1;
    st->next_id = 1;
    mu_buf_init(&st->dropped, mu_mem_default());
    int r = load_module(st, err);
    if (r < 0)
        return r;
    if (make_folder(s->state_dir, &why))
        r = lock_folder(st, s->state_dir, &why);
    if (r == 0 && why.code == 0)
        r = open_file(st, &why);
    /* What only a person can mend is said at once, and to that person. */
    bool wrong = why.code == -ENOENT || why.code == -ENOTDIR || why.code == -EACCES;
    if (r == -EADDRINUSE || r == -EPROTONOSUPPORT || wrong) {
        *err = why;
        return why.code;
    }
    if (why.code != 0)
        fails(st, &why); /* It may be given room, or rights, while we run. */
    return 0;
}

/* --- loading --- */

static void on_job(void *arg,
                   int64_t id,
                   const struct job_row_kept *row,
                   const struct job_node_row *nodes,
                   size_t node_count)
{
    struct state *st = arg;
    st->next_id = id >= st->next_id ? id + 1 : st->next_id;
    st->loading = jobs_load(st->srv, row, nodes, node_count);
    if (st->loading == NULL) {
        (void)mu_buf_add(&st->dropped, &id, sizeof id); /* Without memory it is left out again. */
        st->due = true;
        return;
    }
    st->loading->kept.id = id;
    st->live_round = st->live_round || st->loading->live_round;
}

static void on_incident(void *arg, int64_t id, const struct job_incident *row)
{
    struct state *st = arg;
    struct mu_err err = {0};
    if (st->loading == NULL || job_check_incident(row, &err) < 0)
        return;
    (void)incidents_add(st->loading, row); /* Without memory it is not shown. */
    job_load_incident(&st->loading->job, row);
    st->loading->kept.incidents_done = row->number;
}

static void on_pool_job(void *arg, int64_t id, const struct pool_row *row)
{
    struct state *st = arg;
    st->next_id = id >= st->next_id ? id + 1 : st->next_id;
    srv_pool_load(st->srv, id, row);
}

static void on_drain(void *arg, const struct pool_drain_row *row)
{
    struct state *st = arg;
    srv_pool_load_drain(st->srv, row);
}

static void on_timer(uv_timer_t *timer);

bool state_load(struct srv *s)
{
    struct state *st = s->state;
    struct mu_err err = {0};
    if (st == NULL)
        return false;
    (void)uv_timer_init(s->loop, &st->timer); /* Never fails. */
    st->timer.data = st;
    st->has_timer = true;
    s->handles++;
    const struct srv_state_reader reader = {
        .arg = st, .job = on_job, .incident = on_incident, .pool = on_pool_job, .drain = on_drain};
    if (st->db != NULL && st->module->read(st->db, &reader, &err) < 0) {
        close_file(st);
        if (err.code == -EBADMSG)
            (void)put_aside(st, "damaged", err.msg);
        fails(st, &err);
    }
    st->unread = is_failing(st);
    if (is_failing(st))
        (void)uv_timer_start(&st->timer, on_timer, RETRY_NS / MU_NS_PER_MS, 0);
    return st->live_round;
}

/* --- what is due --- */

static bool is_worth_keeping(const struct job *j)
{
    return j->round > 0 || job_is_ended(j);
}

bool state_note(struct srv *s, struct srv_job *sj, const struct job_out *out)
{
    struct state *st = s->state;
    bool news = false;
    for (uint32_t i = 0; i < out->count; i++) {
        const struct job_action *act = &out->actions[i];
        if (act->type == JOB_ACT_INCIDENT) {
            incidents_note(sj);
            sj->kept.incident_due = true;
        } else if (act->type == JOB_ACT_KEEP_ROUND) {
            sj->kept.round_due = true;
        } else if (act->type == JOB_ACT_KEEP && act->node == JOB_NO_NODE) {
            sj->kept.row_due = true;
        } else if (act->type == JOB_ACT_KEEP && act->node < sj->slot_cap) {
            sj->slots[act->node].due = true;
        } else {
            continue;
        }
        news = true;
    }
    if (st == NULL || !news || !is_worth_keeping(&sj->job))
        return false;
    sj->kept.due = true;
    st->due = true;
    st->durable_due = st->durable_due || out->durable;
    if (!out->durable || is_failing(st))
        return false;
    sj->kept.hold = st->gathering;
    return true;
}

void state_forget(struct srv *s, struct srv_job *sj)
{
    struct state *st = s->state;
    if (st == NULL || s->closing || sj->kept.id == 0)
        return;
    (void)mu_buf_add(&st->dropped, &sj->kept.id, sizeof sj->kept.id); /* Else it stays. */
    st->due = true;
}

static void note_pool(struct state *st)
{
    st->due = true;
    st->durable_due = true;
    st->pool_hold = is_failing(st) ? 0 : st->gathering;
}

void state_note_pool(struct srv *s, struct pool_job *j)
{
    if (s->state == NULL)
        return;
    j->kept_due = true;
    note_pool(s->state);
}

void state_note_drains(struct srv *s)
{
    if (s->state == NULL)
        return;
    s->state->drains_due = true;
    note_pool(s->state);
}

bool state_holds_pool(const struct srv *s)
{
    return s->state != NULL && s->state->pool_hold != 0;
}

void state_hold_answer(const struct srv *s, const char *unkept, struct srv_http_answer *ret)
{
    if (!state_holds_pool(s) || ret->status >= 300)
        return;
    ret->hold = s->state->pool_hold;
    ret->unkept = unkept;
}

/* "TEXT: the disk of --state-dir does not take it (why): make room there, and ask again" */
static struct srv_http_answer refuse_unkept(const struct state *st, const char *text)
{
    char sentence[640];
    (void)snprintf(
        sentence, sizeof sentence,
        "%s: the disk of --state-dir does not take it (%s): make room there, or mend it, "
        "and ask again",
        text, st->why.msg);
    return answer_refusal(507, sentence);
}

bool state_refuses(const struct srv *s, struct srv_http_answer *ret)
{
    if (s->state == NULL || !is_failing(s->state))
        return false;
    *ret = refuse_unkept(s->state, "nothing was done");
    return true;
}

void state_unkept(void *srv, const struct srv_http_answer *a, struct srv_http_answer *ret)
{
    const struct srv *s = srv;
    *ret = refuse_unkept(s->state, a->unkept);
}

void state_forget_pool(struct srv *s, int64_t kept)
{
    struct state *st = s->state;
    if (st == NULL || s->closing || kept == 0)
        return;
    (void)mu_buf_add(&st->dropped, &kept, sizeof kept); /* Else it stays. */
    st->due = true;
}

/* --- a lot --- */

/* A row of ours that is not written yet. */
static void *row_of(const struct srv_state_op *op)
{
    union {
        const void *in;
        void *out;
    } row = {.in = op->row};
    return row.out;
}

static void lot_fini(struct lot *lot)
{
    for (size_t i = 0; i < lot->count; i++)
        mu_mem_free(mu_mem_default(), row_of(&lot->ops[i]));
    mu_mem_free(mu_mem_default(), lot->ops);
    mu_buf_fini(&lot->hellos);
    *lot = (struct lot){0};
}

/* Takes `row` over, which may be NULL for an op without one. */
static int add_op(struct lot *lot, struct srv_state_op op, void *row)
{
    if (lot->count == lot->cap) {
        size_t cap = lot->cap == 0 ? 64 : lot->cap * 2;
        struct srv_state_op *ops = mu_realloc(mu_mem_default(), lot->ops, cap * sizeof *ops);
        if (ops == NULL) {
            mu_mem_free(mu_mem_default(), row);
            return -ENOMEM;
        }
        lot->ops = ops;
        lot->cap = cap;
    }
    op.row = row;
    lot->ops[lot->count++] = op;
    return 0;
}

static int add_job(struct lot *lot, const struct srv_job *sj)
{
    struct job_row_kept *row = mu_alloc(mu_mem_default(), sizeof *row);
    if (row == NULL)
        return -ENOMEM;
    job_save(&sj->job, row);
    return add_op(
        lot,
        (struct srv_state_op){.what = SRV_STATE_PUT, .table = SRV_STATE_JOBS, .job = sj->kept.id},
        row);
}

static int add_node(struct lot *lot, const struct srv_job *sj, uint32_t slot)
{
    struct job_node_row *row = mu_alloc(mu_mem_default(), sizeof *row);
    if (row == NULL)
        return -ENOMEM;
    if (job_save_node(&sj->job, slot, row, &lot->hellos) < 0) {
        mu_mem_free(mu_mem_default(), row);
        return -ENOMEM;
    }
    return add_op(
        lot,
        (struct srv_state_op){.what = SRV_STATE_PUT, .table = SRV_STATE_NODES, .job = sj->kept.id},
        row);
}

/* The texts stand still now: each frame begins where the one before ends. */
static void place_hellos(struct lot *lot)
{
    const char *at = lot->hellos.p;
    for (size_t i = 0; i < lot->count; i++) {
        if (lot->ops[i].what != SRV_STATE_PUT || lot->ops[i].table != SRV_STATE_NODES)
            continue;
        struct job_node_row *row = row_of(&lot->ops[i]);
        row->hello.p = at + CTL_FRAME_HEAD_BYTES;
        at = row->hello.p + row->hello.n;
    }
}

static int add_incidents(struct lot *lot, struct srv_job *sj, bool anew)
{
    int r = 0;
    int64_t last = 0;
    for (uint32_t i = 0; i < sj->incident_count && r == 0; i++) {
        const struct srv_incident *in = sj->incidents[i];
        last = in->number;
        /* The last one that was written may say more now. */
        if (!anew && in->number < sj->kept.incidents_done)
            continue;
        struct job_incident *row = mu_alloc(mu_mem_default(), sizeof *row);
        if (row == NULL)
            return -ENOMEM;
        incidents_unpack(in, row);
        r = add_op(lot,
                   (struct srv_state_op){
                       .what = SRV_STATE_PUT, .table = SRV_STATE_INCIDENTS, .job = sj->kept.id},
                   row);
    }
    if (r == 0 && last > SRV_INCIDENTS_MAX)
        r = add_op(lot,
                   (struct srv_state_op){.what = SRV_STATE_TRIM,
                                         .table = SRV_STATE_INCIDENTS,
                                         .job = sj->kept.id,
                                         .number = last - SRV_INCIDENTS_MAX},
                   NULL);
    if (r == 0)
        sj->kept.incidents_done = last;
    return r;
}

/* What is due of one job, as it is now. */
static int gather_job(struct state *st, struct lot *lot, struct srv_job *sj)
{
    const struct job *j = &sj->job;
    bool all = st->anew || sj->kept.round_due || sj->kept.id == 0;
    bool row = all || sj->kept.row_due;
    int r = 0;
    if (sj->kept.id == 0)
        sj->kept.id = st->next_id++;
    if (all && !st->anew)
        r = add_op(lot,
                   (struct srv_state_op){
                       .what = SRV_STATE_CLEAR, .table = SRV_STATE_NODES, .job = sj->kept.id},
                   NULL);
    for (uint32_t i = 0; i < j->node_cap && r == 0; i++) {
        bool due = i < sj->slot_cap && sj->slots[i].due;
        if (i < sj->slot_cap)
            sj->slots[i].due = false;
        if (j->nodes[i].used && (all || due))
            r = add_node(lot, sj, i);
    }
    if (r == 0 && row)
        r = add_job(lot, sj);
    if (r == 0 && (all || sj->kept.incident_due))
        r = add_incidents(lot, sj, all);
    sj->kept.due = false;
    sj->kept.row_due = false;
    sj->kept.round_due = false;
    sj->kept.incident_due = false;
    return r;
}

/* The row and its texts in one piece. */
static int add_pool_job(struct lot *lot, const struct pool *p, const struct pool_job *j)
{
    struct mu_buf texts;
    struct pool_row row;
    mu_buf_init(&texts, mu_mem_default());
    int r = pool_save(p, j, &row, &texts);
    char *at = r == 0 ? mu_alloc(mu_mem_default(), sizeof row + texts.n + 1) : NULL;
    if (at != NULL) {
        char *copy = at + sizeof row;
        struct mu_str *const parts[] = {&row.seats, &row.past, &row.spec};
        for (size_t i = 0; i < MU_COUNT(parts); i++)
            parts[i]->p = copy + (parts[i]->p - texts.p);
        memcpy(copy, mu_buf_cstr(&texts), texts.n);
        memcpy(at, &row, sizeof row);
    }
    mu_buf_fini(&texts);
    if (at == NULL)
        return -ENOMEM;
    return add_op(
        lot, (struct srv_state_op){.what = SRV_STATE_PUT, .table = SRV_STATE_POOL, .job = j->kept},
        at);
}

static int gather_pool(struct state *st, struct lot *lot)
{
    struct pool *p = &st->srv->pool->pool;
    int r = 0;
    for (uint32_t i = 0; i < p->job_cap && r == 0; i++) {
        struct pool_job *j = p->jobs[i];
        if (j == NULL || (!j->kept_due && !st->anew))
            continue;
        if (j->kept == 0)
            j->kept = st->next_id++;
        j->kept_due = false;
        r = add_pool_job(lot, p, j);
    }
    return r;
}

/* All of them anew: they are few. */
static int gather_drains(struct state *st, struct lot *lot)
{
    const struct pool *p = &st->srv->pool->pool;
    if (!st->drains_due && !st->anew)
        return 0;
    st->drains_due = false;
    int r = add_op(
        lot, (struct srv_state_op){.what = SRV_STATE_CLEAR, .table = SRV_STATE_DRAINS, .job = 0},
        NULL);
    for (uint32_t i = 0; i < p->drain_count && r == 0; i++) {
        struct pool_drain_row *row = mu_alloc(mu_mem_default(), sizeof *row);
        if (row == NULL)
            return -ENOMEM;
        pool_save_drain(&p->drains[i], row);
        r = add_op(
            lot, (struct srv_state_op){.what = SRV_STATE_PUT, .table = SRV_STATE_DRAINS, .job = 0},
            row);
    }
    return r;
}

static int gather_dropped(struct state *st, struct lot *lot)
{
    int r = 0;
    for (size_t at = 0; at < st->dropped.n && r == 0; at += sizeof(int64_t)) {
        int64_t id = 0;
        memcpy(&id, st->dropped.p + at, sizeof id);
        for (int t = 0; t < SRV_STATE_TABLE_COUNT && r == 0; t++)
            r = add_op(lot,
                       (struct srv_state_op){
                           .what = SRV_STATE_CLEAR, .table = (enum srv_state_table)t, .job = id},
                       NULL);
    }
    mu_buf_reset(&st->dropped);
    return r;
}

/* Everything that is due, and nothing is due any more. */
static int gather(struct state *st)
{
    struct lot *lot = &st->lot;
    struct srv_job *sj = NULL;
    *lot = (struct lot){.number = st->gathering++,
                        .durable = st->durable_due,
                        .unread = st->unread,
                        .unread_why = st->why};
    mu_buf_init(&lot->hellos, mu_mem_default());
    int r = 0;
    if (st->anew)
        r = add_op(lot, (struct srv_state_op){.what = SRV_STATE_EMPTY}, NULL);
    if (r == 0)
        r = gather_dropped(st, lot);
    if (r == 0)
        r = gather_pool(st, lot);
    if (r == 0)
        r = gather_drains(st, lot);
    DL_FOREACH(st->srv->jobs, sj)
    {
        if (r == 0 && (sj->kept.due || st->anew) && is_worth_keeping(&sj->job))
            r = gather_job(st, lot, sj);
    }
    place_hellos(lot);
    st->due = false;
    st->durable_due = false;
    st->anew = false;
    return r;
}

/* --- writing --- */

/* On a thread of the pool, or at the end on the loop's: touches the file and the lot only. */
static void write_lot(struct state *st)
{
    struct lot *lot = &st->lot;
    if (lot->unread)
        (void)put_aside(st, "unread", lot->unread_why.msg);
    lot->r = st->db == NULL ? open_file(st, &lot->err) : check_place(st, &lot->err);
    if (lot->r == 0)
        lot->r = st->module->write(st->db, lot->ops, lot->count, lot->durable, &lot->err);
    if (lot->r < 0)
        close_file(st); /* Opened anew by the next attempt. */
    if (lot->r == -EBADMSG)
        (void)put_aside(st, "damaged", lot->err.msg);
}

static void on_work(uv_work_t *work)
{
    write_lot(work->data);
}

/* Nobody waits for a lot up to `safe` any more. kept: it is safe. */
static void release(struct state *st, bool kept)
{
    struct srv_job *sj = NULL;
    DL_FOREACH(st->srv->jobs, sj)
    {
        if (sj->kept.hold == 0 || sj->kept.hold > st->safe)
            continue;
        sj->kept.hold = 0;
        for (uint32_t i = 0; i < sj->slot_cap; i++)
            if (sj->slots[i].agent != NULL)
                agent_release(sj->slots[i].agent);
    }
    if (st->pool_hold != 0 && st->pool_hold <= st->safe) {
        st->pool_hold = 0;
        srv_pool_release(st->srv);
    }
    http_let_go(st->srv, st->safe, kept);
}

static void finish(struct state *st)
{
    struct lot *lot = &st->lot;
    if (lot->r < 0)
        fails(st, &lot->err);
    else
        works_again(st);
    st->unread = st->unread && lot->r < 0; /* What could not be read at our start is kept aside. */
    /* After a failure nobody waits for what may never come. */
    uint64_t safe = lot->r < 0 ? st->gathering : lot->number;
    st->safe = safe > st->safe ? safe : st->safe;
    bool kept = lot->r == 0;
    lot_fini(lot);
    srv_pool_kept(st->srv, kept);
    release(st, kept);
}

static void on_written(uv_work_t *work, int status)
{
    struct state *st = work->data;
    struct srv *s = st->srv;
    (void)status; /* It is never cancelled. */
    st->writing = false;
    s->now_ns = mu_now_ns();
    finish(st);
    if (st->closing) {
        state_close(s);
        srv_handle_closed(s);
        return;
    }
    (void)uv_timer_stop(&st->timer);
    if (is_failing(st))
        (void)uv_timer_start(&st->timer, on_timer, RETRY_NS / MU_NS_PER_MS, 0);
    srv_settle(s);
}

/* The disk lets us wait, or a failure was long enough ago. */
static void on_timer(uv_timer_t *timer)
{
    struct state *st = timer->data;
    struct srv *s = st->srv;
    s->now_ns = mu_now_ns();
    if (st->writing) {
        struct mu_err why = {0};
        (void)mu_err_set(&why, -ETIMEDOUT, "%s: the disk has not answered for %d s", st->path,
                         (int)(HOLD_NS / MU_NS_PER_S));
        fails(st, &why);
        st->safe = st->gathering;
        srv_pool_kept(s, false);
        release(st, false);
    }
    srv_settle(s);
}

void state_settle(struct srv *s)
{
    struct state *st = s->state;
    if (st == NULL || st->writing || !st->due || !st->has_timer || st->closing)
        return;
    if (is_failing(st) && s->now_ns < st->retry_at_ns)
        return;
    int r = gather(st);
    if (r < 0) {
        (void)mu_err_set(&st->lot.err, r, "no memory for what is to be written");
        st->lot.r = r;
        finish(st);
        (void)uv_timer_start(&st->timer, on_timer, RETRY_NS / MU_NS_PER_MS, 0);
        return;
    }
    st->writing = true;
    st->work.data = st;
    (void)uv_queue_work(s->loop, &st->work, on_work, on_written); /* Fails without on_work only. */
    (void)uv_timer_start(&st->timer, on_timer, HOLD_NS / MU_NS_PER_MS, 0);
}

/* --- the end --- */

static void on_closed(uv_handle_t *h)
{
    struct state *st = h->data;
    srv_handle_closed(st->srv);
}

void state_close(struct srv *s)
{
    struct state *st = s->state;
    if (st == NULL || !st->has_timer)
        return;
    if (!st->closing) {
        st->closing = true;
        uv_close((uv_handle_t *)&st->timer, on_closed);
    }
    if (st->writing) {
        s->handles++; /* Back in on_written(). */
        return;
    }
    st->durable_due = true; /* The last one brings all before it to the disk. */
    if (st->due && gather(st) == 0)
        write_lot(st);
    lot_fini(&st->lot);
    close_file(st);
}

void state_free(struct srv *s)
{
    struct state *st = s->state;
    if (st == NULL)
        return;
    if (st->module != NULL)
        close_file(st);
    if (st->lock_fd >= 0)
        (void)close(st->lock_fd);
    mu_buf_fini(&st->dropped);
    mu_mem_free(mu_mem_default(), st->path);
    mu_mem_free(mu_mem_default(), st);
    s->state = NULL;
}
