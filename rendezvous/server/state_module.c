/* muster-state.so: rows of jobs in SQLite; see state_module.h. Columns come from the lists of
 * fields that rendezvous/job prints, so that a field is written once. */
#include "rendezvous/server/state_module.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/mem.h"
#include "base/str.h"

/* Who looks at the file from outside holds a lock for moments only. */
#define BUSY_MS 2000
/* The log is cut back to this after it was copied over. */
#define WAL_BYTES_MAX (4 * 1024 * 1024)

/* What a table is called, its key behind the job's number, and the size of its rows. */
static const struct {
    const char *name;
    const char *key;
    size_t row_bytes;
} tables[SRV_STATE_TABLE_COUNT] = {
    [SRV_STATE_JOBS] = {"jobs", "job", sizeof(struct job_row_kept)},
    [SRV_STATE_NODES] = {"nodes", "job, node", sizeof(struct job_node_row)},
    [SRV_STATE_INCIDENTS] = {"incidents", "job, number", sizeof(struct job_incident)},
    [SRV_STATE_POOL] = {"pool", "job", sizeof(struct pool_row)},
    [SRV_STATE_DRAINS] = {"drains", "job, host", sizeof(struct pool_drain_row)},
};

struct srv_state {
    sqlite3 *db;
    char *path;
    struct job_fields fields[SRV_STATE_TABLE_COUNT];
    sqlite3_stmt *put[SRV_STATE_TABLE_COUNT];
    sqlite3_stmt *clear[SRV_STATE_TABLE_COUNT];
    sqlite3_stmt *trim;
};

/* --- errors --- */

static int errno_of(int code)
{
    switch (code & 0xff) {
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_READONLY:
        return -EROFS;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return -EBADMSG;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
        return -EACCES;
    default:
        return -EIO;
    }
}

static int failed(struct srv_state *st, int code, struct mu_err *err)
{
    int system = sqlite3_system_errno(st->db);
    const char *why = sqlite3_errmsg(st->db);
    bool said = (code & 0xff) == SQLITE_IOERR || (code & 0xff) == SQLITE_CANTOPEN;
    return mu_err_set(err, errno_of(code), "%s: %s%s%s", st->path, why,
                      said && system != 0 ? ": " : "", said && system != 0 ? strerror(system) : "");
}

static int exec(struct srv_state *st, const char *sql, struct mu_err *err)
{
    int code = sqlite3_exec(st->db, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? 0 : failed(st, code, err);
}

/* --- the schema --- */

static const char *type_of(const struct job_field *f)
{
    return f->bytes == 0 ? "INTEGER" : "TEXT";
}

static void create_table(const struct srv_state *st, enum srv_state_table t, struct mu_buf *sql)
{
    (void)mu_buf_addf(sql, "CREATE TABLE %s (job INTEGER NOT NULL", tables[t].name);
    for (size_t i = 0; i < st->fields[t].n; i++)
        (void)mu_buf_addf(sql, ", %s %s NOT NULL", st->fields[t].v[i].name,
                          type_of(&st->fields[t].v[i]));
    (void)mu_buf_addf(sql, ", PRIMARY KEY (%s));", tables[t].key);
}

static int create(struct srv_state *st, struct mu_err *err)
{
    struct mu_buf sql;
    mu_buf_init(&sql, mu_mem_default());
    (void)mu_buf_adds(&sql, "BEGIN IMMEDIATE;");
    for (int t = 0; t < SRV_STATE_TABLE_COUNT; t++)
        create_table(st, (enum srv_state_table)t, &sql);
    (void)mu_buf_addf(&sql, "PRAGMA user_version=%d; COMMIT;", SRV_STATE_SCHEMA);
    int r = sql.oom ? mu_err_set(err, -ENOMEM, "no memory") : exec(st, mu_buf_cstr(&sql), err);
    mu_buf_fini(&sql);
    return r;
}

/* An older file, to what this version writes: all of it or nothing. */
static int bring_up(struct srv_state *st, int version, struct mu_err *err)
{
    static const char again[] = "ALTER TABLE pool ADD COLUMN no_requeue INTEGER NOT NULL DEFAULT 0;"
                                "ALTER TABLE pool ADD COLUMN requeues INTEGER NOT NULL DEFAULT 0;"
                                "ALTER TABLE pool ADD COLUMN lost TEXT NOT NULL DEFAULT '';";
    struct mu_buf sql;
    mu_buf_init(&sql, mu_mem_default());
    (void)mu_buf_adds(&sql, "BEGIN IMMEDIATE;");
    if (version < 2)
        create_table(st, SRV_STATE_POOL, &sql);
    else if (version < 4)
        (void)mu_buf_adds(&sql, again);
    if (version < 3)
        create_table(st, SRV_STATE_DRAINS, &sql);
    (void)mu_buf_addf(&sql, "PRAGMA user_version=%d; COMMIT;", SRV_STATE_SCHEMA);
    int r = sql.oom ? mu_err_set(err, -ENOMEM, "no memory") : exec(st, mu_buf_cstr(&sql), err);
    mu_buf_fini(&sql);
    if (r < 0)
        (void)sqlite3_exec(st->db, "ROLLBACK", NULL, NULL, NULL); /* It may be over already. */
    return r;
}

/* The first column of the only row. */
static int ask(struct srv_state *st, const char *sql, sqlite3_stmt **ret, struct mu_err *err)
{
    int code = sqlite3_prepare_v2(st->db, sql, -1, ret, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_step(*ret);
    return code == SQLITE_ROW ? 0 : failed(st, code, err);
}

static int check_whole(struct srv_state *st, struct mu_err *err)
{
    sqlite3_stmt *q = NULL;
    int r = ask(st, "PRAGMA quick_check(1)", &q, err);
    const unsigned char *said = r == 0 ? sqlite3_column_text(q, 0) : NULL;
    if (r == 0 && (said == NULL || strcmp((const char *)said, "ok") != 0))
        r = mu_err_set(err, -EBADMSG, "%s: %.120s", st->path,
                       said != NULL ? (const char *)said : "unreadable");
    (void)sqlite3_finalize(q);
    return r;
}

static int check_schema(struct srv_state *st, struct mu_err *err)
{
    sqlite3_stmt *q = NULL;
    int r = ask(st, "PRAGMA user_version", &q, err);
    int version = r == 0 ? sqlite3_column_int(q, 0) : 0;
    (void)sqlite3_finalize(q);
    if (r < 0)
        return r;
    if (version > SRV_STATE_SCHEMA || version < 0)
        return mu_err_set(err, -EPROTONOSUPPORT,
                          "%s is of schema %d, and this version knows up to %d: use a newer "
                          "rdzv-server, or another --state-dir",
                          st->path, version, SRV_STATE_SCHEMA);
    return version == 0                 ? create(st, err)
           : version < SRV_STATE_SCHEMA ? bring_up(st, version, err)
                                        : 0;
}

/* --- statements, made once --- */

static int prepare(struct srv_state *st, struct mu_buf *sql, sqlite3_stmt **ret, struct mu_err *err)
{
    int code = sql->oom ? SQLITE_NOMEM
                        : sqlite3_prepare_v3(st->db, mu_buf_cstr(sql), -1,
                                             SQLITE_PREPARE_PERSISTENT, ret, NULL);
    mu_buf_reset(sql);
    /* A table that lacks a column is not one of ours. */
    if (code == SQLITE_ERROR)
        return mu_err_set(err, -EBADMSG, "%s: %s", st->path, sqlite3_errmsg(st->db));
    return code == SQLITE_OK ? 0 : failed(st, code, err);
}

static int prepare_all(struct srv_state *st, struct mu_err *err)
{
    struct mu_buf sql;
    int r = 0;
    mu_buf_init(&sql, mu_mem_default());
    for (int t = 0; t < SRV_STATE_TABLE_COUNT && r == 0; t++) {
        (void)mu_buf_addf(&sql, "INSERT OR REPLACE INTO %s (job", tables[t].name);
        for (size_t i = 0; i < st->fields[t].n; i++)
            (void)mu_buf_addf(&sql, ", %s", st->fields[t].v[i].name);
        (void)mu_buf_adds(&sql, ") VALUES (?");
        for (size_t i = 0; i < st->fields[t].n; i++)
            (void)mu_buf_adds(&sql, ", ?");
        (void)mu_buf_adds(&sql, ")");
        r = prepare(st, &sql, &st->put[t], err);
        if (r < 0)
            break;
        (void)mu_buf_addf(&sql, "DELETE FROM %s WHERE job = ?", tables[t].name);
        r = prepare(st, &sql, &st->clear[t], err);
    }
    (void)mu_buf_adds(&sql, "DELETE FROM incidents WHERE job = ? AND number <= ?");
    if (r == 0)
        r = prepare(st, &sql, &st->trim, err);
    mu_buf_fini(&sql);
    return r;
}

/* --- open and close --- */

static void st_close(struct srv_state *st)
{
    if (st == NULL)
        return;
    for (int t = 0; t < SRV_STATE_TABLE_COUNT; t++) {
        (void)sqlite3_finalize(st->put[t]);
        (void)sqlite3_finalize(st->clear[t]);
    }
    (void)sqlite3_finalize(st->trim);
    (void)sqlite3_close(st->db);
    mu_mem_free(mu_mem_default(), st->path);
    mu_mem_free(mu_mem_default(), st);
}

/* The files beside it take their mode from it, so it is made with the right one. */
static int make_file(const char *path, struct mu_err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return mu_err_set(err, -errno, "%s: %s", path, strerror(errno));
    (void)close(fd);
    return 0;
}

static int set_up(struct srv_state *st, struct mu_err *err)
{
    char sql[160];
    int code =
        sqlite3_open_v2(st->path, &st->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code != SQLITE_OK)
        return st->db != NULL ? failed(st, code, err) : mu_err_set(err, -ENOMEM, "no memory");
    (void)sqlite3_busy_timeout(st->db, BUSY_MS);
    (void)snprintf(
        sql, sizeof sql,
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA journal_size_limit=%d;",
        WAL_BYTES_MAX);
    int r = exec(st, sql, err);
    if (r == 0)
        r = check_whole(st, err);
    if (r == 0)
        r = check_schema(st, err);
    return r == 0 ? prepare_all(st, err) : r;
}

static int st_open(const char *path,
                   const struct job_fields *fields,
                   struct srv_state **ret,
                   struct mu_err *err)
{
    int r = make_file(path, err);
    if (r < 0)
        return r;
    struct srv_state *st = mu_zalloc(mu_mem_default(), sizeof *st);
    if (st != NULL)
        st->path = mu_strdup(mu_mem_default(), path);
    if (st == NULL || st->path == NULL) {
        st_close(st);
        return mu_err_set(err, -ENOMEM, "no memory");
    }
    memcpy(st->fields, fields, sizeof st->fields);
    r = set_up(st, err);
    if (r < 0) {
        st_close(st);
        return r;
    }
    *ret = st;
    return 0;
}

/* --- rows in --- */

/* One column into its place of the row. What does not fit is no text of ours: it becomes "", which
 * the job's own check judges. */
static void take_column(sqlite3_stmt *q, int i, const struct job_field *f, char *row)
{
    char *at = row + f->offset;
    if (f->bytes == 0) {
        int64_t v = sqlite3_column_int64(q, i);
        memcpy(at, &v, sizeof v);
        return;
    }
    const unsigned char *text = sqlite3_column_text(q, i);
    size_t n = text != NULL ? (size_t)sqlite3_column_bytes(q, i) : 0;
    if (f->bytes == JOB_FIELD_BLOB) { /* Copied by whoever keeps the row. */
        struct mu_str s = mu_str_of((const char *)text, n);
        memcpy(at, &s, sizeof s);
        return;
    }
    bool fits = n < f->bytes && (n == 0 || memchr(text, '\0', n) == NULL);
    memset(at, 0, f->bytes);
    if (fits && n > 0)
        memcpy(at, text, n);
}

static int select_rows(struct srv_state *st,
                       enum srv_state_table t,
                       const char *tail,
                       sqlite3_stmt **ret,
                       struct mu_err *err)
{
    struct mu_buf sql;
    mu_buf_init(&sql, mu_mem_default());
    (void)mu_buf_adds(&sql, "SELECT job");
    for (size_t i = 0; i < st->fields[t].n; i++)
        (void)mu_buf_addf(&sql, ", %s", st->fields[t].v[i].name);
    (void)mu_buf_addf(&sql, " FROM %s %s", tables[t].name, tail);
    int r = prepare(st, &sql, ret, err);
    mu_buf_fini(&sql);
    return r;
}

/* Returns 1 and the row, 0 at the end, or a negative errno. */
static int next_row(
    struct srv_state *st, enum srv_state_table t, sqlite3_stmt *q, void *row, struct mu_err *err)
{
    int code = sqlite3_step(q);
    if (code == SQLITE_DONE)
        return 0;
    if (code != SQLITE_ROW)
        return failed(st, code, err);
    for (size_t i = 0; i < st->fields[t].n; i++)
        take_column(q, (int)i + 1, &st->fields[t].v[i], row);
    return 1;
}

/* The nodes of one job, while they are read. */
struct nodes {
    struct job_node_row *v;
    size_t n;
    size_t cap;
    struct mu_buf hellos; /* Their texts, one behind the other. */
};

static int add_node(struct nodes *list, const struct job_node_row *row)
{
    if (list->n == list->cap) {
        size_t cap = list->cap == 0 ? 64 : list->cap * 2;
        struct job_node_row *v = mu_realloc(mu_mem_default(), list->v, cap * sizeof *v);
        if (v == NULL)
            return -ENOMEM;
        list->v = v;
        list->cap = cap;
    }
    list->v[list->n++] = *row;
    return mu_buf_add(&list->hellos, row->hello.p, row->hello.n);
}

static int read_nodes(
    struct srv_state *st, sqlite3_stmt *q, int64_t job, struct nodes *list, struct mu_err *err)
{
    static const struct job_node_row empty;
    struct job_node_row row = empty;
    int r = 0;
    list->n = 0;
    mu_buf_reset(&list->hellos);
    (void)sqlite3_bind_int64(q, 1, job);
    while ((r = next_row(st, SRV_STATE_NODES, q, &row, err)) > 0 && list->n < MU_NODES_MAX)
        if (add_node(list, &row) < 0)
            return mu_err_set(err, -ENOMEM, "no memory");
    (void)sqlite3_reset(q);
    const char *text = list->hellos.p;
    for (size_t i = 0; i < list->n; i++) { /* The texts stand still now. */
        list->v[i].hello.p = text;
        text += list->v[i].hello.n;
    }
    return r < 0 ? r : 0;
}

static int read_incidents(struct srv_state *st,
                          sqlite3_stmt *q,
                          int64_t job,
                          const struct srv_state_reader *reader,
                          struct mu_err *err)
{
    static const struct job_incident empty;
    struct job_incident row = empty;
    int r = 0;
    (void)sqlite3_bind_int64(q, 1, job);
    while ((r = next_row(st, SRV_STATE_INCIDENTS, q, &row, err)) > 0)
        reader->incident(reader->arg, job, &row);
    (void)sqlite3_reset(q);
    return r;
}

static int
read_pool(struct srv_state *st, const struct srv_state_reader *reader, struct mu_err *err)
{
    static const struct pool_row empty;
    struct pool_row row = empty;
    sqlite3_stmt *q = NULL;
    int r = select_rows(st, SRV_STATE_POOL, "ORDER BY job", &q, err);
    while (r == 0 && (r = next_row(st, SRV_STATE_POOL, q, &row, err)) > 0) {
        reader->pool(reader->arg, sqlite3_column_int64(q, 0), &row);
        r = 0;
    }
    (void)sqlite3_finalize(q);
    return r;
}

static int
read_drains(struct srv_state *st, const struct srv_state_reader *reader, struct mu_err *err)
{
    struct pool_drain_row row = {0};
    sqlite3_stmt *q = NULL;
    int r = select_rows(st, SRV_STATE_DRAINS, "ORDER BY host", &q, err);
    while (r == 0 && (r = next_row(st, SRV_STATE_DRAINS, q, &row, err)) > 0) {
        reader->drain(reader->arg, &row);
        r = 0;
    }
    (void)sqlite3_finalize(q);
    return r;
}

static int st_read(struct srv_state *st, const struct srv_state_reader *reader, struct mu_err *err)
{
    static const struct job_row_kept empty;
    struct job_row_kept row = empty;
    sqlite3_stmt *jobs = NULL;
    sqlite3_stmt *nodes = NULL;
    sqlite3_stmt *incidents = NULL;
    struct nodes list = {0};
    mu_buf_init(&list.hellos, mu_mem_default());
    int r = read_pool(st, reader, err);
    if (r == 0)
        r = read_drains(st, reader, err);
    if (r == 0)
        r = select_rows(st, SRV_STATE_JOBS, "ORDER BY job", &jobs, err);
    if (r == 0)
        r = select_rows(st, SRV_STATE_NODES, "WHERE job = ? ORDER BY node_rank, node", &nodes, err);
    if (r == 0)
        r = select_rows(st, SRV_STATE_INCIDENTS, "WHERE job = ? ORDER BY number", &incidents, err);
    while (r == 0 && (r = next_row(st, SRV_STATE_JOBS, jobs, &row, err)) > 0) {
        int64_t job = sqlite3_column_int64(jobs, 0);
        r = read_nodes(st, nodes, job, &list, err);
        if (r < 0)
            break;
        reader->job(reader->arg, job, &row, list.v, list.n);
        r = read_incidents(st, incidents, job, reader, err);
    }
    (void)sqlite3_finalize(jobs);
    (void)sqlite3_finalize(nodes);
    (void)sqlite3_finalize(incidents);
    mu_mem_free(mu_mem_default(), list.v);
    mu_buf_fini(&list.hellos);
    return r;
}

/* --- rows out --- */

static int bind_field(sqlite3_stmt *q, int i, const struct job_field *f, const char *row)
{
    const char *at = row + f->offset;
    if (f->bytes == 0) {
        int64_t v = 0;
        memcpy(&v, at, sizeof v);
        return sqlite3_bind_int64(q, i, v);
    }
    if (f->bytes == JOB_FIELD_BLOB) {
        struct mu_str s;
        memcpy(&s, at, sizeof s);
        return sqlite3_bind_text(q, i, s.p, (int)s.n, SQLITE_STATIC);
    }
    return sqlite3_bind_text(q, i, at, -1, SQLITE_STATIC);
}

static int put(struct srv_state *st, const struct srv_state_op *op)
{
    sqlite3_stmt *q = st->put[op->table];
    const struct job_fields *fields = &st->fields[op->table];
    int code = sqlite3_bind_int64(q, 1, op->job);
    for (size_t i = 0; i < fields->n && code == SQLITE_OK; i++)
        code = bind_field(q, (int)i + 2, &fields->v[i], op->row);
    if (code == SQLITE_OK)
        code = sqlite3_step(q);
    (void)sqlite3_reset(q);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

static int delete_rows(sqlite3_stmt *q, int64_t job, int64_t number)
{
    (void)sqlite3_bind_int64(q, 1, job);
    if (sqlite3_bind_parameter_count(q) > 1)
        (void)sqlite3_bind_int64(q, 2, number);
    int code = sqlite3_step(q);
    (void)sqlite3_reset(q);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

static int carry_out(struct srv_state *st, const struct srv_state_op *op)
{
    switch (op->what) {
    case SRV_STATE_PUT:
        return put(st, op);
    case SRV_STATE_CLEAR:
        return delete_rows(st->clear[op->table], op->job, 0);
    case SRV_STATE_TRIM:
        return delete_rows(st->trim, op->job, op->number);
    case SRV_STATE_EMPTY:
        return sqlite3_exec(st->db,
                            "DELETE FROM jobs; DELETE FROM nodes; DELETE FROM incidents; "
                            "DELETE FROM pool; DELETE FROM drains;",
                            NULL, NULL, NULL);
    }
    return SQLITE_ERROR;
}

static int st_write(struct srv_state *st,
                    const struct srv_state_op *ops,
                    size_t count,
                    bool durable,
                    struct mu_err *err)
{
    int r = exec(st,
                 durable ? "PRAGMA synchronous=FULL; BEGIN IMMEDIATE;"
                         : "PRAGMA synchronous=NORMAL; BEGIN IMMEDIATE;",
                 err);
    for (size_t i = 0; i < count && r == 0; i++) {
        int code = carry_out(st, &ops[i]);
        if (code != SQLITE_OK)
            r = failed(st, code, err);
    }
    if (r == 0)
        r = exec(st, "COMMIT", err);
    if (r < 0)
        (void)sqlite3_exec(st->db, "ROLLBACK", NULL, NULL, NULL); /* It may be over already. */
    return r;
}

__attribute__((visibility("default"))) extern const struct srv_state_module muster_state_module;
const struct srv_state_module muster_state_module = {
    .abi = SRV_STATE_ABI, .open = st_open, .read = st_read, .write = st_write, .close = st_close};
