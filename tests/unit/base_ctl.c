/* Promises of the control protocol: every message goes there and back whole; what is missing or
 * wrong is named; what a newer peer adds is skipped; frames may arrive in any pieces. The rows of
 * ctl.h are walked, so a new message or field is tested from the moment it exists. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "tests/unit/unit.h"

#include <cjson/cJSON.h>

#include "base/ctl.h"

enum kind {
    STR,
    INT,
    INTS,
    CAUSE,
    BIG
};

struct row {
    enum ctl_type type;
    const char *name;
    enum kind kind;
    bool need;
    size_t offset; /* In struct ctl_msg. */
    size_t bytes;
    int64_t min;
    int64_t max;
};

/* clang-format off */
#define S(n, b, d, t) {THIS, #n, STR, (d) != 0, offsetof(struct ctl_msg, u.MEMBER.n), (b), 0, 0},
#define I(n, a, b, d, f, t) {THIS, #n, INT, (d) != 0, offsetof(struct ctl_msg, u.MEMBER.n), 0, (a), (b)},
#define L(n, t) {THIS, #n, INTS, false, offsetof(struct ctl_msg, u.MEMBER.n), 0, 0, 0},
#define C(n, t) {THIS, #n, CAUSE, false, offsetof(struct ctl_msg, u.MEMBER.n), 0, 0, 0},
#define CTL_BIG(n, b, d, t) {THIS, #n, BIG, (d) != 0, offsetof(struct ctl_msg, u.MEMBER.n), (b), 0, 0},
static const struct row rows[] = {
#define THIS CTL_HELLO
#define MEMBER hello
    CTL_HELLO_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_WELCOME
#define MEMBER welcome
    CTL_WELCOME_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_REFUSED
#define MEMBER refused
    CTL_REFUSED_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_WAITING
#define MEMBER waiting
    CTL_WAITING_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_START
#define MEMBER start
    CTL_START_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_REACHED
#define MEMBER reached
    CTL_REACHED_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_GO
#define MEMBER go
    CTL_GO_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_STARTED
#define MEMBER started
    CTL_STARTED_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_EXITED
#define MEMBER exited
    CTL_EXITED_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_FAILED
#define MEMBER failed
    CTL_FAILED_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_SILENT
#define MEMBER silent
    CTL_SILENT_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_FINISHED
#define MEMBER finished
    CTL_FINISHED_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_DRAIN
#define MEMBER drain
    CTL_DRAIN_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_HALT
#define MEMBER halt
    CTL_HALT_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_STOP
#define MEMBER stop
    CTL_STOP_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_STOPPED
#define MEMBER stopped
    CTL_STOPPED_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_BEAT
#define MEMBER beat
    CTL_BEAT_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_BYE
#define MEMBER bye
    CTL_BYE_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_END
#define MEMBER end
    CTL_END_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_OFFER
#define MEMBER offer
    CTL_OFFER_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_HAS
#define MEMBER has
    CTL_HAS_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_ASSIGN
#define MEMBER assign
    CTL_ASSIGN_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_PLACED
#define MEMBER placed
    CTL_PLACED_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_UNASSIGN
#define MEMBER unassign
    CTL_UNASSIGN_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_TAIL
#define MEMBER tail
    CTL_TAIL_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_MORE
#define MEMBER more
    CTL_MORE_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_UNTAIL
#define MEMBER untail
    CTL_UNTAIL_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_OUTPUT
#define MEMBER output
    CTL_OUTPUT_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_CAUGHT
#define MEMBER caught
    CTL_CAUGHT_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_UNDRAIN
#define MEMBER undrain
    CTL_UNDRAIN_FIELDS(S, I, L, C)
#undef THIS
#undef MEMBER
#define THIS CTL_RELEASE
#define MEMBER release
    CTL_RELEASE_FIELDS(S, I, L, C)
};
/* clang-format on */

#define LIST_LONGEST MU_WORKERS_MAX
static char big_text[CTL_SPEC_BYTES]; /* Filled by fill(): quotes, which take two bytes each. */
static const int32_t small_list[] = {1, -1, INT32_MAX, INT32_MIN, 0};

static char *at(struct ctl_msg *m, const struct row *r)
{
    return (char *)m + r->offset;
}

/* Fill every field with something that is not its default. which: 0 least, 1 most, 2 between. */
static void fill(struct ctl_msg *m, enum ctl_type t, int which)
{
    ctl_init(m, t);
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        const struct row *r = &rows[i];
        if (r->type != t)
            continue;
        int64_t v = which == 0 ? r->min : which == 1 ? r->max : r->min + (r->max - r->min) / 2;
        struct ctl_ints list = {small_list, which == 0 ? 0 : MU_COUNT(small_list)};
        struct mu_str big = {big_text, which == 0 ? 0 : which == 1 ? sizeof big_text - 1 : 7};
        struct mu_cause cause = MU_CAUSE_INIT;
        switch (r->kind) {
        case STR:
            memset(at(m, r), which == 0 ? '\0' : 'a' + (int)(i % 26), r->bytes - 1);
            at(m, r)[which == 2 ? 1 : r->bytes - 1] = '\0';
            break;
        case INT:
            memcpy(at(m, r), &v, sizeof v);
            break;
        case INTS:
            memcpy(at(m, r), &list, sizeof list);
            break;
        case CAUSE:
            if (which > 0)
                cause = (struct mu_cause){.kind = MU_CAUSE_WORKER_SIGNAL,
                                          .node_rank = 1,
                                          .rank = INT32_MAX,
                                          .local_rank = 3,
                                          .pid = 4,
                                          .exit_code = 255,
                                          .signo = 9,
                                          .round = UINT32_MAX,
                                          .at_unix_ms = INT64_C(1795503999999),
                                          .host = "n\xc3\xa4",
                                          .message = "quote \" and\nline"};
            memcpy(at(m, r), &cause, sizeof cause);
            break;
        case BIG:
            memset(big_text, '"', sizeof big_text - 1);
            memcpy(at(m, r), &big, sizeof big);
            break;
        }
    }
}

static void assert_same_cause(const struct mu_cause *a, const struct mu_cause *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->node_rank, b->node_rank);
    assert_int_equal(a->rank, b->rank);
    assert_int_equal(a->local_rank, b->local_rank);
    assert_int_equal(a->pid, b->pid);
    assert_int_equal(a->exit_code, b->exit_code);
    assert_int_equal(a->signo, b->signo);
    assert_int_equal(a->round, b->round);
    assert_true(a->at_unix_ms == b->at_unix_ms);
    assert_string_equal(a->host, b->host);
    assert_string_equal(a->message, b->message);
}

static void assert_same(struct ctl_msg *a, struct ctl_msg *b)
{
    assert_int_equal(a->type, b->type);
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        const struct row *r = &rows[i];
        if (r->type != a->type)
            continue;
        struct ctl_ints la;
        struct ctl_ints lb;
        struct mu_cause ca;
        struct mu_cause cb;
        struct mu_str ba;
        struct mu_str bb;
        switch (r->kind) {
        case STR:
            assert_string_equal(at(a, r), at(b, r));
            break;
        case INT:
            assert_memory_equal(at(a, r), at(b, r), sizeof(int64_t));
            break;
        case INTS:
            memcpy(&la, at(a, r), sizeof la);
            memcpy(&lb, at(b, r), sizeof lb);
            assert_int_equal(la.n, lb.n);
            if (la.n > 0)
                assert_memory_equal(la.v, lb.v, la.n * sizeof *la.v);
            break;
        case CAUSE:
            memcpy(&ca, at(a, r), sizeof ca);
            memcpy(&cb, at(b, r), sizeof cb);
            assert_same_cause(&ca, &cb);
            break;
        case BIG:
            memcpy(&ba, at(a, r), sizeof ba);
            memcpy(&bb, at(b, r), sizeof bb);
            assert_true(mu_str_eq(ba, bb));
            assert_int_equal(bb.p[bb.n], '\0');
            break;
        }
    }
}

/* Encode, find the frame, decode. */
static int there_and_back(const struct ctl_msg *m, struct ctl_msg *ret, struct mu_buf *scratch)
{
    struct mu_buf b;
    struct mu_str json;
    struct mu_err err = {0};
    size_t frame_bytes = 0;
    mu_buf_init(&b, mu_mem_default());
    assert_int_equal(ctl_encode(m, &b), 0);
    assert_int_equal(ctl_frame(mu_str_of(b.p, b.n), &json, &frame_bytes, &err), 1);
    assert_int_equal(frame_bytes, b.n);
    int r = ctl_decode(json, ret, scratch, &err);
    if (r < 0)
        print_message("%s\n", err.msg);
    mu_buf_fini(&b);
    return r;
}

static void test_every_message_goes_there_and_back(void **state)
{
    (void)state;
    struct mu_buf scratch;
    mu_buf_init(&scratch, mu_mem_default());
    for (int t = 0; t < CTL_TYPE_COUNT; t++) {
        for (int which = 0; which < 3; which++) {
            struct ctl_msg m;
            struct ctl_msg got;
            memset(&got, 0x5a, sizeof got);
            fill(&m, (enum ctl_type)t, which);
            assert_int_equal(there_and_back(&m, &got, &scratch), 0);
            assert_same(&m, &got);
        }
    }
    mu_buf_fini(&scratch);
}

/* What ctl_encode() writes is read in passing, everything else as JSON at large: a space behind the
 * brace takes the second way, and both give the same message. */
static void test_every_message_is_read_the_same_both_ways(void **state)
{
    (void)state;
    struct mu_buf scratch;
    struct mu_buf frame;
    struct mu_buf spaced;
    mu_buf_init(&scratch, mu_mem_default());
    mu_buf_init(&frame, mu_mem_default());
    mu_buf_init(&spaced, mu_mem_default());
    for (int t = 0; t < CTL_TYPE_COUNT; t++) {
        for (int which = 0; which < 3; which++) {
            struct ctl_msg m;
            struct ctl_msg got;
            struct mu_err err = {0};
            memset(&got, 0xa5, sizeof got);
            fill(&m, (enum ctl_type)t, which);
            mu_buf_reset(&frame);
            mu_buf_reset(&spaced);
            assert_int_equal(ctl_encode(&m, &frame), 0);
            struct mu_str json =
                mu_str_of(frame.p + CTL_FRAME_HEAD_BYTES, frame.n - CTL_FRAME_HEAD_BYTES);
            assert_int_equal(mu_buf_add(&spaced, "{ ", 2), 0);
            assert_int_equal(mu_buf_add(&spaced, json.p + 1, json.n - 1), 0);
            assert_int_equal(ctl_decode(mu_str_of(spaced.p, spaced.n), &got, &scratch, &err), 0);
            assert_same(&m, &got);
        }
    }
    mu_buf_fini(&spaced);
    mu_buf_fini(&frame);
    mu_buf_fini(&scratch);
}

static void test_the_longest_list_goes_there_and_back(void **state)
{
    (void)state;
    static int32_t pids[LIST_LONGEST];
    struct mu_buf scratch;
    struct ctl_msg m;
    struct ctl_msg got;
    mu_buf_init(&scratch, mu_mem_default());
    for (int32_t i = 0; i < LIST_LONGEST; i++)
        pids[i] = 4194304 - i;
    ctl_init(&m, CTL_STARTED);
    m.u.started.pids = (struct ctl_ints){pids, LIST_LONGEST};
    assert_int_equal(there_and_back(&m, &got, &scratch), 0);
    assert_same(&m, &got);
    mu_buf_fini(&scratch);
}

/* The message as JSON, for tests that spoil it. */
static cJSON *as_json(enum ctl_type t)
{
    struct ctl_msg m;
    struct mu_buf b;
    fill(&m, t, 1);
    mu_buf_init(&b, mu_mem_default());
    assert_int_equal(ctl_encode(&m, &b), 0);
    cJSON *root = cJSON_ParseWithLength(b.p + CTL_FRAME_HEAD_BYTES, b.n - CTL_FRAME_HEAD_BYTES);
    assert_non_null(root);
    mu_buf_fini(&b);
    return root;
}

static int decode_text(const char *text, struct mu_err *err)
{
    struct ctl_msg m;
    struct mu_buf scratch;
    mu_buf_init(&scratch, mu_mem_default());
    int r = ctl_decode(mu_str_of(text, strlen(text)), &m, &scratch, err);
    mu_buf_fini(&scratch);
    return r;
}

static int decode_json(cJSON *root, struct mu_err *err)
{
    char *text = cJSON_PrintUnformatted(root);
    int r = decode_text(text, err);
    free(text);
    return r;
}

static void assert_names(const struct mu_err *err, const struct row *r)
{
    assert_has(err->msg, ctl_type_name(r->type));
    assert_has(err->msg, r->name);
}

static void test_a_missing_field_is_named_if_needed_and_missed_by_nobody_if_not(void **state)
{
    (void)state;
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct mu_err err = {0};
        cJSON *root = as_json(rows[i].type);
        cJSON_DeleteItemFromObjectCaseSensitive(root, rows[i].name);
        assert_int_equal(decode_json(root, &err), rows[i].need ? -EPROTO : 0);
        if (rows[i].need)
            assert_names(&err, &rows[i]);
        cJSON_Delete(root);
    }
}

/* The row's field takes none of these. */
static void spoil(const struct row *r, cJSON *bad)
{
    struct mu_err err = {0};
    cJSON *root = as_json(r->type);
    assert_true(cJSON_ReplaceItemInObjectCaseSensitive(root, r->name, bad));
    char *text = cJSON_PrintUnformatted(root);
    int code = decode_text(text, &err);
    if (code != -EPROTO)
        fail_msg("taken: %.300s", text);
    assert_names(&err, r);
    free(text);
    cJSON_Delete(root);
}

static cJSON *too_long(size_t bytes)
{
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    memset(text, 'x', bytes);
    text[bytes] = '\0';
    cJSON *s = cJSON_CreateString(text);
    free(text);
    return s;
}

static void test_wrong_types_and_ranges_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        const struct row *r = &rows[i];
        spoil(r, cJSON_CreateNull());
        spoil(r, cJSON_CreateTrue());
        if (r->kind != STR && r->kind != BIG)
            spoil(r, cJSON_CreateString("1"));
        if (r->kind != INT)
            spoil(r, cJSON_CreateNumber(1));
        if (r->kind != INTS)
            spoil(r, cJSON_CreateArray());
        spoil(r, cJSON_CreateObject()); /* A cause without a kind, too. */
        if (r->kind == STR || r->kind == BIG)
            spoil(r, too_long(r->bytes));
        if (r->kind == INT) {
            spoil(r, cJSON_CreateNumber((double)r->min - 1));
            /* A double cannot tell 2^53 from its neighbour: there, further. */
            spoil(r, cJSON_CreateNumber((double)r->max * (r->max >= INT64_C(1) << 53 ? 2 : 1) + 1));
            spoil(r, cJSON_CreateRaw("1.5"));
            spoil(r, cJSON_CreateRaw("1e300"));
            spoil(r, cJSON_CreateRaw("-1e300"));
        }
    }
}

/* The second list must not move what the first one points into. */
static void test_a_message_may_have_two_lists(void **state)
{
    (void)state;
    int32_t exits[64];
    int32_t late[32];
    for (int32_t i = 0; i < 64; i++)
        exits[i] = i;
    for (int32_t i = 0; i < 32; i++)
        late[i] = -i;
    struct ctl_msg m;
    struct ctl_msg back;
    struct mu_buf frame;
    struct mu_buf scratch;
    mu_buf_init(&frame, mu_mem_default());
    mu_buf_init(&scratch, mu_mem_default());
    ctl_init(&m, CTL_STOPPED);
    m.u.stopped.round = 1;
    m.u.stopped.exits = (struct ctl_ints){exits, 64};
    m.u.stopped.late = (struct ctl_ints){late, 32};
    assert_int_equal(ctl_encode(&m, &frame), 0);
    struct mu_str json = mu_str_of(frame.p + CTL_FRAME_HEAD_BYTES, frame.n - CTL_FRAME_HEAD_BYTES);
    assert_int_equal(ctl_decode(json, &back, &scratch, NULL), 0);
    assert_int_equal(back.u.stopped.exits.n, 64);
    assert_int_equal(back.u.stopped.late.n, 32);
    assert_memory_equal(back.u.stopped.exits.v, exits, sizeof exits);
    assert_memory_equal(back.u.stopped.late.v, late, sizeof late);
    mu_buf_fini(&scratch);
    /* The same by the way of other senders' blanks. */
    static const char spaced[] = "{ \"type\" : \"stopped\" , \"round\":1, \"store_port\":0, "
                                 "\"exits\":[0,1,2,3,4,5,6,7], \"late\":[0,9,1,9,2,9]}";
    mu_buf_init(&scratch, mu_mem_default());
    assert_int_equal(ctl_decode(mu_str_of(spaced, sizeof spaced - 1), &back, &scratch, NULL), 0);
    assert_memory_equal(back.u.stopped.exits.v, exits, 8 * sizeof exits[0]);
    assert_int_equal(back.u.stopped.late.v[1], 9);
    mu_buf_fini(&scratch);
    mu_buf_fini(&frame);
}

/* Whatever stands first, the numbers are where numbers may be, and nothing was moved. */
static void test_a_message_may_have_a_big_text_and_a_list(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"type\":\"assign\",\"job\":\"j\",\"attempt\":1,\"spec\":\"abcde\",\"node_rank\":0,"
        "\"node_count\":1,\"nproc\":2,\"gpus\":[3,5]}",
        "{ \"type\":\"assign\",\"gpus\":[3,5],\"job\":\"j\",\"attempt\":1,\"node_rank\":0,"
        "\"node_count\":1,\"nproc\":2,\"spec\":\"abcde\"}",
        "{\"type\":\"assign\",\"job\":\"j\",\"attempt\":1,\"spec\":\"a\\u0062cde\",\"node_rank\":0,"
        "\"node_count\":1,\"nproc\":2,\"gpus\":[3,5]}"};
    for (size_t i = 0; i < MU_COUNT(texts); i++) {
        struct mu_buf scratch;
        struct ctl_msg m;
        mu_buf_init(&scratch, mu_mem_default());
        assert_int_equal(ctl_decode(mu_str_of(texts[i], strlen(texts[i])), &m, &scratch, NULL), 0);
        assert_string_equal(m.u.assign.spec.p, "abcde");
        assert_int_equal(m.u.assign.gpus.n, 2);
        assert_int_equal((uintptr_t)m.u.assign.gpus.v % sizeof(int32_t), 0);
        assert_int_equal(m.u.assign.gpus.v[1], 5);
        mu_buf_fini(&scratch);
    }
}

static void test_lists_and_causes_are_checked_inside(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"type\":\"started\",\"round\":1,\"pids\":[1,\"2\"]}",
        "{\"type\":\"started\",\"round\":1,\"pids\":[1,null]}",
        "{\"type\":\"started\",\"round\":1,\"pids\":[2147483648]}",
        "{\"type\":\"started\",\"round\":1,\"pids\":[0.5]}",
        "{\"type\":\"started\",\"round\":1,\"pids\":[[]]}",
        "{\"type\":\"failed\",\"round\":1,\"cause\":{\"kind\":\"nonesuch\"}}",
        "{\"type\":\"failed\",\"round\":1,\"cause\":{\"kind\":7}}",
        "{\"type\":\"failed\",\"round\":1,\"cause\":{\"kind\":\"worker_exit\",\"rank\":-2}}",
        "{\"type\":\"failed\",\"round\":1,\"cause\":{\"kind\":\"worker_exit\",\"pid\":-1}}",
        "{\"type\":\"failed\",\"round\":1,\"cause\":{\"kind\":\"worker_exit\",\"rank\":\"1\"}}",
        "{\"type\":\"failed\",\"round\":1,\"cause\":{\"kind\":\"worker_exit\",\"round\":-1}}",
        "{\"type\":\"failed\",\"round\":1,\"cause\":{\"kind\":\"worker_exit\",\"host\":1}}",
        "{\"type\":\"failed\",\"round\":1,\"cause\":{\"kind\":\"worker_exit\",\"at_unix_ms\":0.5}}",
        "{\"type\":\"failed\",\"round\":1,\"cause\":[]}",
    };
    for (size_t i = 0; i < MU_COUNT(bad); i++) {
        struct mu_err err = {0};
        if (decode_text(bad[i], &err) != -EPROTO)
            fail_msg("taken: %s", bad[i]);
        assert_has(err.msg, i < 5 ? "'pids'" : "'cause'");
    }
    char text[MU_WORKERS_MAX * 2 + 64] = "{\"type\":\"started\",\"round\":1,\"pids\":[0";
    for (int i = 0; i < MU_WORKERS_MAX; i++) /* One more than allowed. */
        strncat(text, ",0", sizeof text - strlen(text) - 1);
    strncat(text, "]}", sizeof text - strlen(text) - 1);
    struct mu_err err = {0};
    assert_int_equal(decode_text(text, &err), -EPROTO);
}

static void test_what_is_unknown_is_skipped(void **state)
{
    (void)state;
    struct mu_err err = {0};
    struct ctl_msg m;
    struct mu_buf scratch;
    mu_buf_init(&scratch, mu_mem_default());
    static const char later[] =
        "{\"new\":{\"deep\":[1,{\"x\":null}]},\"type\":\"exited\",\"local_rank\":5,\"round\":7,"
        "\"Round\":9,\"also\":\"text\"}";
    assert_int_equal(ctl_decode(mu_str_of(later, sizeof later - 1), &m, &scratch, &err), 0);
    assert_int_equal(m.type, CTL_EXITED);
    assert_true(m.u.exited.round == 7 && m.u.exited.local_rank == 5);
    mu_buf_fini(&scratch);
    assert_int_equal(decode_text("{\"type\":\"from_the_future\",\"a\":1}", &err), -ENOMSG);
    assert_int_equal(decode_text("{\"type\":\"\"}", &err), -ENOMSG);
    assert_int_equal(decode_text("{\"type\":\"HELLO\"}", &err), -ENOMSG);
}

static void test_what_is_no_message_gets_a_sentence(void **state)
{
    (void)state;
    static const char *const bad[] = {"",     "{",     "[]",           "1",  "\"x\"",
                                      "null", "{a:1}", "{\"type\":7}", "{}", "{\"round\":1}"};
    for (size_t i = 0; i < MU_COUNT(bad); i++) {
        struct mu_err err = {0};
        assert_int_equal(decode_text(bad[i], &err), -EPROTO);
        assert_true(strlen(err.msg) > 10);
        assert_int_equal(decode_text(bad[i], NULL), -EPROTO);
    }
    char deep[4096]; /* A tower of brackets must not take the stack down. */
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    struct mu_err err = {0};
    assert_int_equal(decode_text(deep, &err), -EPROTO);
}

/* The same field twice: the last one counts, and a list said twice must not leave a dead pointer.
 */
static void test_a_text_with_a_nul_is_refused_not_cut(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int result;
    } cases[] = {{"{\"type\":\"refused\",\"text\":\"a\\u0000b\"}", -EPROTO},
                 {"{\"type\":\"refused\",\"text\":\"a\\\\u0000b\"}", 0},
                 {"{\"type\":\"refused\",\"text\":\"a\\\\\\u0000b\"}", -EPROTO},
                 {"{\"type\":\"refused\",\"text\":\"a\\u000\"}", -EPROTO}};
    struct mu_buf scratch;
    mu_buf_init(&scratch, mu_mem_default());
    for (size_t i = 0; i < MU_COUNT(cases); i++) {
        struct ctl_msg m;
        struct mu_err err = {0};
        int r = ctl_decode(mu_str_of(cases[i].json, strlen(cases[i].json)), &m, &scratch, &err);
        assert_int_equal(r, cases[i].result);
    }
    mu_buf_fini(&scratch);
}

static void test_a_repeated_field_is_safe(void **state)
{
    (void)state;
    struct mu_err err = {0};
    struct ctl_msg m;
    struct mu_buf scratch;
    struct mu_buf text;
    mu_buf_init(&scratch, mu_mem_default());
    mu_buf_init(&text, mu_mem_default());
    (void)mu_buf_adds(&text,
                      "{\"type\":\"started\",\"round\":1,\"pids\":[7],\"round\":2,\"pids\":[1");
    for (int i = 2; i <= 1000; i++)
        (void)mu_buf_addf(&text, ",%d", i);
    (void)mu_buf_adds(&text, "]}");
    assert_int_equal(ctl_decode(mu_str_of(text.p, text.n), &m, &scratch, &err), 0);
    assert_true(m.u.started.round == 2);
    assert_int_equal(m.u.started.pids.n, 1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(m.u.started.pids.v[i], i + 1);
    mu_buf_fini(&text);
    mu_buf_fini(&scratch);
}

/* Three frames in a row, cut at every byte: nothing is lost, nothing is seen early. */
static void test_frames_split_at_every_byte(void **state)
{
    (void)state;
    struct mu_buf all;
    size_t ends[3];
    mu_buf_init(&all, mu_mem_default());
    static const enum ctl_type types[] = {CTL_BEAT, CTL_FAILED, CTL_WELCOME};
    for (size_t i = 0; i < 3; i++) {
        struct ctl_msg m;
        fill(&m, types[i], 2);
        assert_int_equal(ctl_encode(&m, &all), 0);
        ends[i] = all.n;
    }
    for (size_t have = 0; have <= all.n; have++) {
        size_t pos = 0;
        size_t found = 0;
        struct mu_str json;
        size_t frame_bytes = 0;
        while (ctl_frame(mu_str_of(all.p + pos, have - pos), &json, &frame_bytes, NULL) == 1) {
            struct ctl_msg m;
            struct mu_buf scratch;
            mu_buf_init(&scratch, mu_mem_default());
            assert_int_equal(ctl_decode(json, &m, &scratch, NULL), 0);
            assert_int_equal(m.type, types[found]);
            mu_buf_fini(&scratch);
            pos += frame_bytes;
            assert_int_equal(pos, ends[found]);
            found++;
        }
        size_t whole = 0;
        while (whole < 3 && ends[whole] <= have)
            whole++;
        assert_int_equal(found, whole);
    }
    mu_buf_fini(&all);
}

static void test_frames_of_no_size_or_too_much_are_refused(void **state)
{
    (void)state;
    struct mu_str json;
    size_t n = 0;
    struct mu_err err = {0};
    assert_int_equal(ctl_frame(mu_str_of("\0\0\0\0", 4), &json, &n, &err), -EMSGSIZE);
    assert_has(err.msg, "1 to 1048576");
    assert_int_equal(ctl_frame(mu_str_of("\xff\xff\xff\xff", 4), &json, &n, &err), -EMSGSIZE);
    assert_int_equal(ctl_frame(mu_str_of("\0\x10\0\1", 4), &json, &n, &err), -EMSGSIZE);
    assert_int_equal(ctl_frame(mu_str_of("\0\x10\0\0", 4), &json, &n, &err),
                     0); /* 1 MiB to come. */
    char *whole = calloc(1, MU_FRAME_BYTES_MAX + CTL_FRAME_HEAD_BYTES);
    assert_non_null(whole);
    memcpy(whole, "\0\x10\0\0", 4);
    size_t len = MU_FRAME_BYTES_MAX + CTL_FRAME_HEAD_BYTES;
    assert_int_equal(ctl_frame(mu_str_of(whole, len), &json, &n, &err), 1);
    assert_int_equal(json.n, MU_FRAME_BYTES_MAX);
    assert_int_equal(n, len);
    assert_int_equal(ctl_frame(mu_str_of(whole, len - 1), &json, &n, &err), 0);
    free(whole);
}

/* Whatever allocation fails, encode and decode say so and leak nothing. */
static void test_no_memory_is_said(void **state)
{
    (void)state;
    struct ctl_msg m;
    fill(&m, CTL_STARTED, 1);
    int r = -ENOMEM;
    for (size_t at_call = 1; r == -ENOMEM; at_call++) {
        struct mu_mem_failing heap;
        struct mu_buf b;
        mu_mem_failing_init(&heap, at_call);
        mu_buf_init(&b, &heap.mem);
        r = ctl_encode(&m, &b);
        assert_true(r == 0 || (r == -ENOMEM && b.oom));
        mu_buf_fini(&b);
        assert_int_equal(heap.live, 0);
    }
    struct mu_mem_failing heap;
    struct mu_buf scratch;
    mu_mem_failing_init(&heap, 1);
    mu_buf_init(&scratch, &heap.mem);
    static const char text[] = "{\"type\":\"started\",\"round\":1,\"pids\":[1]}";
    assert_int_equal(ctl_decode(mu_str_of(text, sizeof text - 1), &m, &scratch, NULL), -ENOMEM);
    assert_int_equal(heap.live, 0);
}

/* A worker's last words may be any bytes; the report of its failure must still arrive. */
static void test_text_that_is_no_utf8_is_cut_not_refused(void **state)
{
    (void)state;
    struct mu_buf scratch;
    struct ctl_msg m;
    struct ctl_msg got;
    mu_buf_init(&scratch, mu_mem_default());
    ctl_init(&m, CTL_FAILED);
    m.u.failed.round = 1;
    m.u.failed.cause.kind = MU_CAUSE_WORKER_EXIT;
    memset(m.u.failed.cause.message, 0xff, MU_MESSAGE_BYTES - 1);
    memset(m.u.failed.cause.host, 0xc3, MU_HOST_BYTES - 1);
    assert_int_equal(there_and_back(&m, &got, &scratch), 0);
    assert_int_equal(strlen(got.u.failed.cause.message), (MU_MESSAGE_BYTES - 1) / 3 * 3);
    assert_memory_equal(got.u.failed.cause.message, "\xef\xbf\xbd\xef\xbf\xbd", 6);
    mu_buf_fini(&scratch);
}

/* Any bytes may come: many small changes to real messages, each answered. */
static void test_damaged_messages_are_answered(void **state)
{
    (void)state;
    uint64_t seed = 4711;
    struct mu_buf scratch;
    mu_buf_init(&scratch, mu_mem_default());
    for (int t = 0; t < CTL_TYPE_COUNT; t++) {
        struct ctl_msg m;
        struct mu_buf b;
        fill(&m, (enum ctl_type)t, 2);
        mu_buf_init(&b, mu_mem_default());
        assert_int_equal(ctl_encode(&m, &b), 0);
        for (int i = 0; i < 2000; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
            size_t where = CTL_FRAME_HEAD_BYTES + (size_t)(seed >> 33) % (b.n - 4);
            char kept = b.p[where];
            b.p[where] = (char)(seed >> 25);
            struct ctl_msg got;
            int r = ctl_decode(mu_str_of(b.p + 4, b.n - 4), &got, &scratch, NULL);
            assert_true(r == 0 || r == -EPROTO || r == -ENOMSG);
            b.p[where] = kept;
        }
        mu_buf_fini(&b);
    }
    mu_buf_fini(&scratch);
}

static void test_the_reference_page_names_every_field(void **state)
{
    (void)state;
    struct mu_buf b;
    char cell[64];
    mu_buf_init(&b, mu_mem_default());
    ctl_describe(&b);
    assert_false(b.oom);
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        (void)snprintf(cell, sizeof cell, "### `%s` (", ctl_type_name(rows[i].type));
        const char *section = strstr(mu_buf_cstr(&b), cell);
        assert_non_null(section);
        (void)snprintf(cell, sizeof cell, "| `%s` | ", rows[i].name);
        assert_has(section, cell);
    }
    mu_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_message_goes_there_and_back),
        cmocka_unit_test(test_every_message_is_read_the_same_both_ways),
        cmocka_unit_test(test_the_longest_list_goes_there_and_back),
        cmocka_unit_test(test_a_missing_field_is_named_if_needed_and_missed_by_nobody_if_not),
        cmocka_unit_test(test_wrong_types_and_ranges_are_refused_by_name),
        cmocka_unit_test(test_a_message_may_have_two_lists),
        cmocka_unit_test(test_a_message_may_have_a_big_text_and_a_list),
        cmocka_unit_test(test_lists_and_causes_are_checked_inside),
        cmocka_unit_test(test_what_is_unknown_is_skipped),
        cmocka_unit_test(test_what_is_no_message_gets_a_sentence),
        cmocka_unit_test(test_a_text_with_a_nul_is_refused_not_cut),
        cmocka_unit_test(test_a_repeated_field_is_safe),
        cmocka_unit_test(test_frames_split_at_every_byte),
        cmocka_unit_test(test_frames_of_no_size_or_too_much_are_refused),
        cmocka_unit_test(test_no_memory_is_said),
        cmocka_unit_test(test_text_that_is_no_utf8_is_cut_not_refused),
        cmocka_unit_test(test_damaged_messages_are_answered),
        cmocka_unit_test(test_the_reference_page_names_every_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
