/* Control messages to bytes and back, all from the rows of ctl.h. Pure but for cJSON. */
#include "base/ctl.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/json.h"

#define UNIX_MS_MAX INT64_C(253402300799999) /* The last millisecond of the year 9999. */

enum field_kind {
    FIELD_STR,
    FIELD_INT,
    FIELD_INTS,
    FIELD_CAUSE,
    FIELD_BIG
};

struct field {
    const char *name;
    struct mu_str key; /* As it stands in JSON. */
    enum field_kind kind;
    bool need;
    size_t offset; /* In the message's own struct. */
    size_t bytes;  /* STR, BIG: room with NUL. */
    int64_t min;
    int64_t max;
    int64_t dflt;
    const char *doc;
};

#define STR_ROW(T, name_, bytes_, need_, doc_)                                                     \
    {.name = #name_,                                                                               \
     .key = {"\"" #name_ "\":", sizeof #name_ + 2},                                                \
     .kind = FIELD_STR,                                                                            \
     .need = (need_) != 0,                                                                         \
     .offset = offsetof(T, name_),                                                                 \
     .bytes = (bytes_),                                                                            \
     .doc = (doc_)},
#define INT_ROW(T, name_, min_, max_, need_, dflt_, doc_)                                          \
    {.name = #name_,                                                                               \
     .key = {"\"" #name_ "\":", sizeof #name_ + 2},                                                \
     .kind = FIELD_INT,                                                                            \
     .need = (need_) != 0,                                                                         \
     .offset = offsetof(T, name_),                                                                 \
     .min = (min_),                                                                                \
     .max = (max_),                                                                                \
     .dflt = (dflt_),                                                                              \
     .doc = (doc_)},
#define INTS_ROW(T, name_, doc_)                                                                   \
    {.name = #name_,                                                                               \
     .key = {"\"" #name_ "\":", sizeof #name_ + 2},                                                \
     .kind = FIELD_INTS,                                                                           \
     .offset = offsetof(T, name_),                                                                 \
     .doc = (doc_)},
#define CAUSE_ROW(T, name_, doc_)                                                                  \
    {.name = #name_,                                                                               \
     .key = {"\"" #name_ "\":", sizeof #name_ + 2},                                                \
     .kind = FIELD_CAUSE,                                                                          \
     .offset = offsetof(T, name_),                                                                 \
     .doc = (doc_)},

#define BIG_ROW(T, name_, bytes_, need_, doc_)                                                     \
    {.name = #name_,                                                                               \
     .key = {"\"" #name_ "\":", sizeof #name_ + 2},                                                \
     .kind = FIELD_BIG,                                                                            \
     .need = (need_) != 0,                                                                         \
     .offset = offsetof(T, name_),                                                                 \
     .bytes = (bytes_),                                                                            \
     .doc = (doc_)},

/* The field macros take no struct name, so each message binds its own. */
/* clang-format off */
#define S(n, b, d, t) STR_ROW(MSG, n, b, d, t)
#define I(n, a, b, d, f, t) INT_ROW(MSG, n, a, b, d, f, t)
#define L(n, t) INTS_ROW(MSG, n, t)
#define C(n, t) CAUSE_ROW(MSG, n, t)
#define MSG struct ctl_knock
static const struct field knock_fields[] = {CTL_KNOCK_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_challenge
static const struct field challenge_fields[] = {CTL_CHALLENGE_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_proof
static const struct field proof_fields[] = {CTL_PROOF_FIELDS(S, I, L, C)};
#undef MSG
#define CTL_BIG(n, b, d, t) BIG_ROW(MSG, n, b, d, t)
#define MSG struct ctl_hello
static const struct field hello_fields[] = {CTL_HELLO_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_welcome
static const struct field welcome_fields[] = {CTL_WELCOME_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_refused
static const struct field refused_fields[] = {CTL_REFUSED_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_waiting
static const struct field waiting_fields[] = {CTL_WAITING_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_start
static const struct field start_fields[] = {CTL_START_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_reached
static const struct field reached_fields[] = {CTL_REACHED_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_go
static const struct field go_fields[] = {CTL_GO_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_started
static const struct field started_fields[] = {CTL_STARTED_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_exited
static const struct field exited_fields[] = {CTL_EXITED_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_failed
static const struct field failed_fields[] = {CTL_FAILED_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_silent
static const struct field silent_fields[] = {CTL_SILENT_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_finished
static const struct field finished_fields[] = {CTL_FINISHED_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_drain
static const struct field drain_fields[] = {CTL_DRAIN_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_halt
static const struct field halt_fields[] = {CTL_HALT_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_stop
static const struct field stop_fields[] = {CTL_STOP_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_stopped
static const struct field stopped_fields[] = {CTL_STOPPED_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_health
static const struct field health_fields[] = {CTL_HEALTH_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_beat
static const struct field beat_fields[] = {CTL_BEAT_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_bye
static const struct field bye_fields[] = {CTL_BYE_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_end
static const struct field end_fields[] = {CTL_END_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_offer
static const struct field offer_fields[] = {CTL_OFFER_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_has
static const struct field has_fields[] = {CTL_HAS_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_assign
static const struct field assign_fields[] = {CTL_ASSIGN_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_placed
static const struct field placed_fields[] = {CTL_PLACED_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_unassign
static const struct field unassign_fields[] = {CTL_UNASSIGN_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_tail
static const struct field tail_fields[] = {CTL_TAIL_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_more
static const struct field more_fields[] = {CTL_MORE_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_untail
static const struct field untail_fields[] = {CTL_UNTAIL_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_output
static const struct field output_fields[] = {CTL_OUTPUT_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_caught
static const struct field caught_fields[] = {CTL_CAUGHT_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_undrain
static const struct field undrain_fields[] = {CTL_UNDRAIN_FIELDS(S, I, L, C)};
#undef MSG
#define MSG struct ctl_release
static const struct field release_fields[] = {CTL_RELEASE_FIELDS(S, I, L, C)};
#undef MSG
/* clang-format on */

/* A cause is an object with fields of its own; its kind is a word. */
#define MSG struct mu_cause
static const struct field cause_fields[] = {
    STR_ROW(MSG, host, MU_HOST_BYTES, 0, "host it happened on")
        STR_ROW(MSG, message, MU_MESSAGE_BYTES, 0, "the worker's or agent's own words")};
#undef MSG
static const struct {
    const char *name;
    size_t offset;
    int32_t min;
    const char *doc;
} cause_ints[] = {
    {"node_rank", offsetof(struct mu_cause, node_rank), -1, "node rank, -1: not known"},
    {"rank", offsetof(struct mu_cause, rank), -1, "global rank, -1: not known"},
    {"local_rank", offsetof(struct mu_cause, local_rank), -1, "local rank, -1: not known"},
    {"pid", offsetof(struct mu_cause, pid), 0, "process id, 0: none"},
    {"exit_code", offsetof(struct mu_cause, exit_code), 0, "exit status of a worker_exit"},
    {"signo", offsetof(struct mu_cause, signo), 0, "signal of a worker_signal"},
    {"blame", offsetof(struct mu_cause, blame), -1,
     "rank that the worker names as the one that failed before it, -1: nobody"},
    {"step", offsetof(struct mu_cause, step), -1, "last step that the worker reported, -1: none"},
    {"core_dumped", offsetof(struct mu_cause, core_dumped), 0, "1: it left a core"},
    {"out_of_memory", offsetof(struct mu_cause, out_of_memory), 0,
     "1: the kernel killed it for memory"},
};

struct schema {
    const char *name;
    char from;
    const char *doc;
    const struct field *fields;
    size_t field_count;
    size_t offset; /* Of its struct in struct ctl_msg. */
};

static const struct schema schemas[CTL_TYPE_COUNT] = {
#define X(NAME, name_, from_, doc_)                                                                \
    [CTL_##NAME] = {.name = #name_,                                                                \
                    .from = (from_),                                                               \
                    .doc = (doc_),                                                                 \
                    .fields = name_##_fields,                                                      \
                    .field_count = MU_COUNT(name_##_fields),                                       \
                    .offset = offsetof(struct ctl_msg, u.name_)},
    CTL_MESSAGES(X)
#undef X
};

const char *ctl_type_name(enum ctl_type t)
{
    MU_ASSERT((size_t)t < CTL_TYPE_COUNT);
    return schemas[t].name;
}

static char *member(struct ctl_msg *m, const struct schema *s, const struct field *f)
{
    return (char *)m + s->offset + f->offset;
}

static const char *cmember(const struct ctl_msg *m, const struct schema *s, const struct field *f)
{
    return (const char *)m + s->offset + f->offset;
}

void ctl_init(struct ctl_msg *m, enum ctl_type t)
{
    const struct schema *s = &schemas[t];
    m->type = t;
    for (size_t i = 0; i < s->field_count; i++) {
        const struct field *f = &s->fields[i];
        char *p = member(m, s, f);
        static const struct ctl_ints no_ints;
        const struct mu_str no_text = {"", 0};
        const struct mu_cause no_cause = MU_CAUSE_INIT;
        switch (f->kind) {
        case FIELD_STR:
            p[0] = '\0';
            break;
        case FIELD_INT:
            memcpy(p, &f->dflt, sizeof f->dflt);
            break;
        case FIELD_INTS:
            memcpy(p, &no_ints, sizeof no_ints);
            break;
        case FIELD_CAUSE:
            memcpy(p, &no_cause, sizeof no_cause);
            break;
        case FIELD_BIG:
            memcpy(p, &no_text, sizeof no_text);
            break;
        }
    }
}

/* A byte that is no UTF-8 goes out as U+FFFD, three bytes: a text that would then not fit its field
 * at the other end, and have the whole message refused, is cut. */
static void encode_text(struct mu_json *w, const struct field *f, const char *p)
{
    size_t all = strlen(p);
    size_t in = all * 3 < f->bytes ? all : 0; /* Then it fits whatever it is. */
    size_t out = 0;
    while (in < all) {
        size_t len = mu_utf8_len(p + in, all - in);
        out += len > 0 ? len : 3;
        if (out >= f->bytes)
            break;
        in += len > 0 ? len : 1;
    }
    mu_json_ready_key(w, f->key);
    mu_json_strn(w, mu_str_of(p, in));
}

static void encode_cause(struct mu_json *w, const struct mu_cause *c)
{
    mu_json_open(w, '{');
    mu_json_kstr(w, "kind", mu_cause_kind_text(c->kind));
    mu_json_ki64(w, "round", c->round);
    for (size_t i = 0; i < MU_COUNT(cause_ints); i++) {
        int32_t v = 0;
        memcpy(&v, (const char *)c + cause_ints[i].offset, sizeof v);
        mu_json_ki64(w, cause_ints[i].name, v);
    }
    mu_json_ki64(w, "at_unix_ms", c->at_unix_ms);
    for (size_t i = 0; i < MU_COUNT(cause_fields); i++)
        encode_text(w, &cause_fields[i], (const char *)c + cause_fields[i].offset);
    mu_json_close(w, '}');
}

static void encode_field(struct mu_json *w, const struct field *f, const char *p)
{
    int64_t v = 0;
    struct ctl_ints ints;
    struct mu_str text;
    switch (f->kind) {
    case FIELD_STR:
        if (p[0] != '\0' || f->need)
            encode_text(w, f, p);
        break;
    case FIELD_INT:
        memcpy(&v, p, sizeof v);
        if (!f->need && v == f->dflt)
            break;
        mu_json_ready_key(w, f->key);
        mu_json_i64(w, v);
        break;
    case FIELD_INTS:
        memcpy(&ints, p, sizeof ints);
        mu_json_ready_key(w, f->key);
        mu_json_open(w, '[');
        for (uint32_t i = 0; i < ints.n; i++)
            mu_json_i64(w, ints.v[i]);
        mu_json_close(w, ']');
        break;
    case FIELD_CAUSE:
        if (((const struct mu_cause *)(const void *)p)->kind == MU_CAUSE_NONE)
            break;
        mu_json_ready_key(w, f->key);
        encode_cause(w, (const struct mu_cause *)(const void *)p);
        break;
    case FIELD_BIG: /* Its senders made it of characters that take two bytes at most here. */
        memcpy(&text, p, sizeof text);
        MU_ASSERT(text.n < f->bytes);
        mu_json_ready_key(w, f->key);
        mu_json_strn(w, text);
        break;
    }
}

int ctl_encode(const struct ctl_msg *m, struct mu_buf *out)
{
    const struct schema *s = &schemas[m->type];
    size_t at = out->n;
    (void)mu_buf_add(out, "\0\0\0\0", CTL_FRAME_HEAD_BYTES);
    struct mu_json w;
    mu_json_init(&w, out);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "type", s->name);
    for (size_t i = 0; i < s->field_count; i++)
        encode_field(&w, &s->fields[i], cmember(m, s, &s->fields[i]));
    mu_json_close(&w, '}');
    if (out->oom)
        return -ENOMEM;
    size_t n = out->n - at - CTL_FRAME_HEAD_BYTES;
    MU_ASSERT(n <= MU_FRAME_BYTES_MAX);
    unsigned char *head = (unsigned char *)out->p + at;
    head[0] = (unsigned char)(n >> 24);
    head[1] = (unsigned char)(n >> 16);
    head[2] = (unsigned char)(n >> 8);
    head[3] = (unsigned char)n;
    return 0;
}

int ctl_frame(struct mu_str in, struct mu_str *ret, size_t *ret_frame_bytes, struct mu_err *err)
{
    if (in.n < CTL_FRAME_HEAD_BYTES)
        return 0;
    const unsigned char *h = (const unsigned char *)in.p;
    size_t n = (size_t)h[0] << 24 | (size_t)h[1] << 16 | (size_t)h[2] << 8 | h[3];
    if (n == 0 || n > MU_FRAME_BYTES_MAX)
        return mu_err_set(err, -EMSGSIZE, "a frame of %zu bytes: 1 to %d are allowed", n,
                          MU_FRAME_BYTES_MAX);
    if (in.n < CTL_FRAME_HEAD_BYTES + n)
        return 0;
    *ret = mu_str_of(in.p + CTL_FRAME_HEAD_BYTES, n);
    *ret_frame_bytes = CTL_FRAME_HEAD_BYTES + n;
    return 1;
}

/* A JSON number that is whole and in range. */
static bool whole(const cJSON *item, int64_t min, int64_t max, int64_t *ret)
{
    if (!cJSON_IsNumber(item))
        return false;
    double d = item->valuedouble;
    /* 2^53: beyond it a double cannot tell neighbours apart, and no field of ours goes there. */
    if (!(d >= -9007199254740992.0 && d <= 9007199254740992.0) || d != (double)(int64_t)d)
        return false;
    *ret = (int64_t)d;
    return *ret >= min && *ret <= max;
}

static int decode_str(const cJSON *item, char *p, size_t bytes)
{
    if (!cJSON_IsString(item) || item->valuestring == NULL || strlen(item->valuestring) >= bytes)
        return -EPROTO;
    return mu_strcopy(p, bytes, item->valuestring);
}

static int decode_cause(const cJSON *item, struct mu_cause *c)
{
    *c = MU_CAUSE_INIT;
    if (!cJSON_IsObject(item))
        return -EPROTO;
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(item, "kind");
    if (!cJSON_IsString(kind) || mu_cause_kind_parse(kind->valuestring, &c->kind) < 0)
        return -EPROTO;
    for (size_t i = 0; i < MU_COUNT(cause_ints); i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(item, cause_ints[i].name);
        int64_t n = 0;
        if (v == NULL)
            continue;
        if (!whole(v, cause_ints[i].min, INT32_MAX, &n))
            return -EPROTO;
        int32_t n32 = (int32_t)n;
        memcpy((char *)c + cause_ints[i].offset, &n32, sizeof n32);
    }
    int64_t round = 0;
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(item, "round");
    if (v != NULL && !whole(v, 0, UINT32_MAX, &round))
        return -EPROTO;
    c->round = (uint32_t)round;
    v = cJSON_GetObjectItemCaseSensitive(item, "at_unix_ms");
    if (v != NULL && !whole(v, 0, UNIX_MS_MAX, &c->at_unix_ms))
        return -EPROTO;
    for (size_t i = 0; i < MU_COUNT(cause_fields); i++) {
        v = cJSON_GetObjectItemCaseSensitive(item, cause_fields[i].name);
        if (v != NULL &&
            decode_str(v, (char *)c + cause_fields[i].offset, cause_fields[i].bytes) < 0)
            return -EPROTO;
    }
    return 0;
}

/* A list is collected in scratch, which has room for it: ctl_decode(). */
static int decode_ints(const cJSON *item, char *p, struct mu_buf *scratch)
{
    if (!cJSON_IsArray(item))
        return -EPROTO;
    struct ctl_ints ints = {.v = NULL, .n = 0};
    size_t at = scratch->n;
    for (const cJSON *e = item->child; e != NULL; e = e->next) {
        int64_t n = 0;
        if (ints.n == MU_WORKERS_MAX || !whole(e, INT32_MIN, INT32_MAX, &n))
            return -EPROTO;
        int32_t n32 = (int32_t)n;
        if (mu_buf_add(scratch, &n32, sizeof n32) < 0)
            return -ENOMEM;
        ints.n++;
    }
    if (ints.n > 0)
        ints.v = (const int32_t *)(const void *)(scratch->p + at);
    memcpy(p, &ints, sizeof ints);
    return 0;
}

/* Into scratch, which has room for it; what follows there is a list's numbers. */
static int take_big(struct mu_str text, const struct field *f, char *p, struct mu_buf *scratch)
{
    static const char zeros[sizeof(int32_t)];
    if (text.n >= f->bytes)
        return -EPROTO;
    size_t at = scratch->n;
    if (mu_buf_add(scratch, text.p, text.n) < 0 ||
        mu_buf_add(scratch, zeros, sizeof zeros - text.n % sizeof zeros) < 0)
        return -ENOMEM;
    text.p = scratch->p + at;
    memcpy(p, &text, sizeof text);
    return 0;
}

static int decode_field(const cJSON *item, const struct field *f, char *p, struct mu_buf *scratch)
{
    int64_t v = 0;
    switch (f->kind) {
    case FIELD_STR:
        return decode_str(item, p, f->bytes);
    case FIELD_INT:
        if (!whole(item, f->min, f->max, &v))
            return -EPROTO;
        memcpy(p, &v, sizeof v);
        return 0;
    case FIELD_INTS:
        return decode_ints(item, p, scratch);
    case FIELD_CAUSE:
        return decode_cause(item, (struct mu_cause *)(void *)p);
    case FIELD_BIG:
        if (!cJSON_IsString(item) || item->valuestring == NULL)
            return -EPROTO;
        return take_big(mu_str_of(item->valuestring, strlen(item->valuestring)), f, p, scratch);
    }
    return -EPROTO;
}

static int refuse_field(const struct schema *s, const struct field *f, struct mu_err *err)
{
    switch (f->kind) {
    case FIELD_INT:
        return mu_err_set(err, -EPROTO,
                          "message '%s': field '%s' is not a whole number from %" PRId64
                          " to %" PRId64,
                          s->name, f->name, f->min, f->max);
    case FIELD_STR:
    case FIELD_BIG:
        return mu_err_set(err, -EPROTO,
                          "message '%s': field '%s' is not a text of at most %zu bytes", s->name,
                          f->name, f->bytes - 1);
    case FIELD_INTS:
    case FIELD_CAUSE:
        break;
    }
    return mu_err_set(err, -EPROTO, "message '%s': field '%s' is not what docs/protocol.md says",
                      s->name, f->name);
}

static bool is_word(struct mu_str s, const char *word)
{
    return strncmp(s.p, word, s.n) == 0 && word[s.n] == '\0';
}

/* CTL_TYPE_COUNT: this version does not know it. */
static size_t type_of(struct mu_str name)
{
    size_t t = 0;
    while (t < CTL_TYPE_COUNT && !is_word(name, schemas[t].name))
        t++;
    return t;
}

/* Which fields of a message came. Senders write them in the table's order, so the search begins
 * behind the last one found. */
struct came {
    const struct schema *schema;
    uint64_t seen; /* A bit a field. */
    size_t next;
};
_Static_assert(MU_COUNT(hello_fields) <= 64, "`seen` has a bit a field");

/* NULL: a newer peer's field. */
static const struct field *find_field(struct came *c, struct mu_str name)
{
    const struct schema *s = c->schema;
    size_t i = c->next;
    for (size_t tried = 0; tried < s->field_count; tried++, i++) {
        i = i >= s->field_count ? 0 : i;
        if (!is_word(name, s->fields[i].name))
            continue;
        c->seen |= UINT64_C(1) << i;
        c->next = i + 1;
        return &s->fields[i];
    }
    return NULL;
}

/* NULL: none. */
static const struct field *missing_field(const struct came *c)
{
    for (size_t i = 0; i < c->schema->field_count; i++)
        if (c->schema->fields[i].need && (c->seen >> i & 1) == 0)
            return &c->schema->fields[i];
    return NULL;
}

static int
decode_message(const cJSON *root, struct ctl_msg *m, struct mu_buf *scratch, struct mu_err *err)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(root, "type");
    if (!cJSON_IsString(type))
        return mu_err_set(err, -EPROTO, "a message without a 'type'");
    size_t t = type_of(mu_str_of(type->valuestring, strlen(type->valuestring)));
    if (t == CTL_TYPE_COUNT)
        return mu_err_set(err, -ENOMSG, "a message type that this version does not know");
    struct came came = {.schema = &schemas[t]};
    ctl_init(m, (enum ctl_type)t);
    for (const cJSON *item = root->child; item != NULL; item = item->next) {
        const struct field *f = find_field(&came, mu_str_of(item->string, strlen(item->string)));
        int r = f != NULL ? decode_field(item, f, member(m, came.schema, f), scratch) : 0;
        if (r == -ENOMEM)
            return r;
        if (r < 0)
            return refuse_field(came.schema, f, err);
    }
    const struct field *missing = missing_field(&came);
    if (missing != NULL)
        return mu_err_set(err, -EPROTO, "message '%s': field '%s' is missing", came.schema->name,
                          missing->name);
    return 0;
}

/* --- the plain form: what ctl_encode() writes when no text needs an escape --- */

/* Takes `c` off the front. */
static bool plain_byte(struct mu_str *in, char c)
{
    if (in->n == 0 || in->p[0] != c)
        return false;
    *in = mu_str_of(in->p + 1, in->n - 1);
    return true;
}

/* A text without escapes, quotes included. */
static bool plain_text(struct mu_str *in, struct mu_str *ret)
{
    if (!plain_byte(in, '"'))
        return false;
    size_t n = 0;
    while (n < in->n && in->p[n] != '"' && in->p[n] != '\\' && (unsigned char)in->p[n] >= 0x20)
        n++;
    *ret = mu_str_of(in->p, n);
    *in = mu_str_of(in->p + n, in->n - n);
    return plain_byte(in, '"');
}

/* A whole number of at most 15 digits, which a double holds exactly too. */
static bool plain_number(struct mu_str *in, int64_t *ret)
{
    bool negative = plain_byte(in, '-');
    int64_t v = 0;
    size_t n = 0;
    while (n < in->n && n < 16 && in->p[n] >= '0' && in->p[n] <= '9')
        v = v * 10 + (in->p[n++] - '0');
    if (n == 0 || n > 15 || (n > 1 && in->p[0] == '0'))
        return false;
    *in = mu_str_of(in->p + n, in->n - n);
    *ret = negative ? -v : v;
    return true;
}

static bool plain_list(struct mu_str *in, struct mu_buf *scratch, struct ctl_ints *ret)
{
    size_t at = scratch->n;
    *ret = (struct ctl_ints){.v = NULL, .n = 0};
    if (!plain_byte(in, '['))
        return false;
    if (plain_byte(in, ']'))
        return true;
    do {
        int64_t v = 0;
        if (!plain_number(in, &v) || v < INT32_MIN || v > INT32_MAX || ret->n == MU_WORKERS_MAX)
            return false;
        int32_t v32 = (int32_t)v;
        if (mu_buf_add(scratch, &v32, sizeof v32) < 0)
            return false;
        ret->n++;
    } while (plain_byte(in, ','));
    ret->v = (const int32_t *)(const void *)(scratch->p + at);
    return plain_byte(in, ']');
}

static bool plain_value(struct mu_str *in, const struct field *f, char *p, struct mu_buf *scratch)
{
    struct mu_str text;
    struct ctl_ints ints;
    int64_t v = 0;
    switch (f->kind) {
    case FIELD_STR:
        if (!plain_text(in, &text) || text.n >= f->bytes)
            return false;
        memcpy(p, text.p, text.n);
        p[text.n] = '\0';
        return true;
    case FIELD_INT:
        if (!plain_number(in, &v) || v < f->min || v > f->max)
            return false;
        memcpy(p, &v, sizeof v);
        return true;
    case FIELD_INTS:
        if (!plain_list(in, scratch, &ints))
            return false;
        memcpy(p, &ints, sizeof ints);
        return true;
    case FIELD_BIG:
        return plain_text(in, &text) && take_big(text, f, p, scratch) == 0;
    case FIELD_CAUSE:
        break;
    }
    return false;
}

/* Thousands of hellos come at once, and building a tree of each costs five times as much as reading
 * it in passing. False: something is not plain, or wrong: the whole form decides, and has the
 * words. */
static bool decode_plain(struct mu_str in, struct ctl_msg *m, struct mu_buf *scratch)
{
    struct mu_str key;
    struct mu_str text;
    if (!plain_byte(&in, '{') || !plain_text(&in, &key) || !is_word(key, "type") ||
        !plain_byte(&in, ':') || !plain_text(&in, &text))
        return false;
    size_t t = type_of(text);
    if (t == CTL_TYPE_COUNT)
        return false;
    struct came came = {.schema = &schemas[t]};
    ctl_init(m, (enum ctl_type)t);
    while (plain_byte(&in, ',')) {
        if (!plain_text(&in, &key) || !plain_byte(&in, ':'))
            return false;
        const struct field *f = find_field(&came, key);
        if (f == NULL || !plain_value(&in, f, member(m, came.schema, f), scratch))
            return false;
    }
    return plain_byte(&in, '}') && in.n == 0 && missing_field(&came) == NULL;
}

/* cJSON cuts a text at its NUL, and a name that was cut means somebody else. */
static bool has_nul(struct mu_str json)
{
    size_t backslashes = 0; /* In a row, before i. */
    for (size_t i = 0; i < json.n; i++) {
        if (json.p[i] == '\0' ||
            (backslashes % 2 == 1 && json.n - i >= 5 && memcmp(json.p + i, "u0000", 5) == 0))
            return true;
        backslashes = json.p[i] == '\\' ? backslashes + 1 : 0;
    }
    return false;
}

int ctl_decode(struct mu_str json, struct ctl_msg *m, struct mu_buf *scratch, struct mu_err *err)
{
    mu_buf_reset(scratch);
    /* Room for all lists and big texts before the first of them is pointed into: a number takes two
     * bytes of text at least, with what separates it. */
    if (mu_buf_reserve(scratch, (json.n / 2 + 2) * sizeof(int32_t)) < 0)
        return mu_err_set(err, -ENOMEM, "no memory for a message's lists");
    const char *room = scratch->p;
    if (decode_plain(json, m, scratch)) {
        MU_ASSERT(scratch->p == room);
        return 0;
    }
    mu_buf_reset(scratch);
    if (has_nul(json))
        return mu_err_set(err, -EPROTO, "a text with a NUL in it");
    cJSON *root = cJSON_ParseWithLength(json.p, json.n);
    if (root == NULL || !cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return mu_err_set(err, -EPROTO, "a frame that is not one JSON object");
    }
    int r = decode_message(root, m, scratch, err);
    MU_ASSERT(scratch->p == room);
    cJSON_Delete(root);
    return r;
}

static void describe_field(struct mu_buf *out, const struct field *f)
{
    static const char *const kinds[] = {[FIELD_STR] = "text",
                                        [FIELD_INT] = "integer",
                                        [FIELD_INTS] = "list of integers",
                                        [FIELD_CAUSE] = "cause",
                                        [FIELD_BIG] = "text"};
    (void)mu_buf_addf(out, "| `%s` | %s", f->name, kinds[f->kind]);
    if (f->kind == FIELD_STR || f->kind == FIELD_BIG)
        (void)mu_buf_addf(out, ", at most %zu bytes", f->bytes - 1);
    if (f->kind == FIELD_INT)
        (void)mu_buf_addf(out, ", %" PRId64 " to %" PRId64, f->min, f->max);
    (void)mu_buf_addf(out, " | ");
    if (f->need)
        (void)mu_buf_adds(out, "required");
    else if (f->kind == FIELD_INT)
        (void)mu_buf_addf(out, "%" PRId64, f->dflt);
    else
        (void)mu_buf_adds(out, "empty");
    (void)mu_buf_addf(out, " | %s |\n", f->doc);
}

void ctl_describe(struct mu_buf *out)
{
    for (size_t t = 0; t < CTL_TYPE_COUNT; t++) {
        const struct schema *s = &schemas[t];
        (void)mu_buf_addf(
            out,
            "### `%s` (%s)\n\n%s.\n\n| field | type | default | meaning |\n|---|---|---|---|\n",
            s->name,
            s->from == 'A'   ? "agent to server"
            : s->from == 'S' ? "server to agent"
                             : "both ways",
            s->doc);
        for (size_t i = 0; i < s->field_count; i++)
            describe_field(out, &s->fields[i]);
        (void)mu_buf_adds(out, "\n");
    }
    (void)mu_buf_adds(
        out, "### a cause\n\n| field | type | meaning |\n|---|---|---|\n| `kind` | text | one of");
    for (int k = 0; k < MU_CAUSE_KIND_COUNT; k++)
        (void)mu_buf_addf(out, " `%s`", mu_cause_kind_text((enum mu_cause_kind)k));
    (void)mu_buf_adds(out, " |\n| `round` | integer | round it ended |\n");
    for (size_t i = 0; i < MU_COUNT(cause_ints); i++)
        (void)mu_buf_addf(out, "| `%s` | integer | %s |\n", cause_ints[i].name, cause_ints[i].doc);
    (void)mu_buf_adds(out, "| `at_unix_ms` | integer | when, by that host's clock |\n");
    for (size_t i = 0; i < MU_COUNT(cause_fields); i++)
        (void)mu_buf_addf(out, "| `%s` | text | %s |\n", cause_fields[i].name, cause_fields[i].doc);
}
