/* Each rank beats once a second, also while it waits: who waits for another takes it for lost when
 * that one's beat stands still, not when it is merely late because of a third. So one dead node
 * costs each of the others one limit at most, and the first to notice tells all. */
#include "launcher/doctor/part.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/store.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "launcher/doctor/link.h"
#include "launcher/doctor/look.h"
#include "launcher/doctor/net.h"

#define SLICE_NS MU_NS_PER_S
#define MEET_NS (60 * MU_NS_PER_S)
#define SILENCE_MIN_NS (20 * MU_NS_PER_S)
#define WAIT_MAX_NS (3600 * MU_NS_PER_S) /* However lively the other is. */
#define KEY_BYTES 64

struct part {
    const struct part_ask *ask;
    const struct muster_env *env;
    muster_store *store;
    uint32_t me;
    uint32_t count;
    uint32_t beats;
    int64_t beaten_ns;
    char stage[96];
    cJSON **nodes;
    cJSON *looks;
    bool *gone;
    struct net_port port;
};

/* ------------------------------------------------------------------ the store */

static const char *key_of(char *buf, const char *what, uint32_t rank)
{
    (void)snprintf(buf, KEY_BYTES, "doctor/%s/%u", what, rank);
    return buf;
}

static int take_error(struct mu_err *err, int r, const struct muster_error *from)
{
    return mu_err_set(err, r, "the workers' store: %.180s", from->text);
}

static int put(struct part *p, const char *key, const char *text, struct mu_err *err)
{
    struct muster_error e = {0};
    int r = text != NULL ? muster_store_set(p->store, key, text, strlen(text), &e) : -ENOMEM;
    return r < 0 ? take_error(err, r, &e) : 0;
}

static int put_json(struct part *p, const char *key, const cJSON *v, struct mu_err *err)
{
    char *text = cJSON_PrintUnformatted(v);
    int r = put(p, key, text, err);
    cJSON_free(text);
    return r;
}

static cJSON *get_json(struct part *p, const char *key)
{
    struct muster_bytes b = {0};
    if (muster_store_get(p->store, key, &b, NULL) < 0)
        return NULL;
    cJSON *v = cJSON_ParseWithLength(b.p, b.n);
    muster_bytes_free(&b);
    return v;
}

static bool is_there(struct part *p, const char *key)
{
    bool there = false;
    return muster_store_check(p->store, &key, 1, &there, NULL) == 0 && there;
}

/* "17 looking at n3": the number grows, the words are for people. */
static bool beat(void *arg)
{
    struct part *p = arg;
    char key[KEY_BYTES];
    char text[128];
    int64_t now = mu_now_ns();
    if (now - p->beaten_ns >= SLICE_NS / 2) {
        p->beaten_ns = now;
        (void)snprintf(text, sizeof text, "%u %s", ++p->beats, p->stage);
        (void)put(p, key_of(key, "at", p->me), text, NULL); /* The next call says what is wrong. */
    }
    return !*p->ask->stop;
}

static void enter_stage(struct part *p, const char *what, uint32_t peer)
{
    const char *host = "";
    if (p->nodes[peer] != NULL)
        (void)doc_text(p->nodes[peer], "host", &host, NULL);
    (void)snprintf(p->stage, sizeof p->stage, "while it %s %.40s (rank %u)", what, host, peer);
    p->beaten_ns = 0;
    (void)beat(p);
}

/* ------------------------------------------------------------------ waiting for a rank */

struct watch {
    char last[128];
    int64_t changed_ns;
};

/* Does it live, as far as its beats tell? */
static bool lives(struct part *p, struct watch *w, uint32_t rank, int64_t silence_ns)
{
    char key[KEY_BYTES];
    struct muster_bytes b = {0};
    int64_t now = mu_now_ns();
    if (is_there(p, key_of(key, "at", rank)) &&
        muster_store_get(p->store, key_of(key, "at", rank), &b, NULL) == 0) {
        if (strncmp(w->last, b.p, sizeof w->last - 1) != 0) {
            (void)snprintf(w->last, sizeof w->last, "%s", b.p);
            w->changed_ns = now;
        }
        muster_bytes_free(&b);
    }
    return now - w->changed_ns <= silence_ns && !is_there(p, key_of(key, "gone", rank));
}

static int64_t silence_limit(const struct part *p)
{
    int64_t four = 4 * p->ask->limit_ns;
    return four > SILENCE_MIN_NS ? four : SILENCE_MIN_NS;
}

/* 0: the key is there. -ETIMEDOUT: that rank is lost. -ECANCELED: we were told to stop. Else the
 * store is gone. */
static int
await_rank(struct part *p, const char *key, uint32_t rank, int64_t silence_ns, struct mu_err *err)
{
    struct watch w = {.changed_ns = mu_now_ns()};
    int64_t end_ns = mu_now_ns() + WAIT_MAX_NS;
    for (;;) {
        struct muster_error e = {0};
        int r = muster_store_wait(p->store, &key, 1, SLICE_NS, &e);
        if (r != -ETIMEDOUT)
            return r < 0 ? take_error(err, r, &e) : 0;
        if (!beat(p))
            return mu_err_set(err, -ECANCELED, "the job was stopped before all was looked at");
        if (lives(p, &w, rank, silence_ns) && mu_now_ns() < end_ns)
            continue;
        char gone[KEY_BYTES];
        p->gone[rank] = true;
        (void)put(p, key_of(gone, "gone", rank), "1", NULL);
        return -ETIMEDOUT;
    }
}

/* ------------------------------------------------------------------ meeting */

static int meet(struct part *p, struct mu_err *err)
{
    char key[KEY_BYTES];
    int64_t end_ns = mu_now_ns() + MEET_NS;
    (void)cJSON_AddNumberToObject(p->ask->facts, "port", p->port.port);
    (void)cJSON_AddStringToObject(p->ask->facts, "nonce", p->port.nonce);
    (void)cJSON_AddStringToObject(p->ask->facts, "answer", p->port.answer);
    int r = put_json(p, key_of(key, "facts", p->me), p->ask->facts, err);
    for (uint32_t i = 0; r == 0 && i < p->count; i++) {
        int64_t left = end_ns - mu_now_ns();
        r = await_rank(p, key_of(key, "facts", i), i, left > 0 ? left : 0, err);
        if (r == 0)
            p->nodes[i] = get_json(p, key);
        else if (r == -ETIMEDOUT)
            r = 0; /* Missing; rank 0 says so. */
    }
    return r;
}

/* ------------------------------------------------------------------ pairs */

static bool is_same_machine(const cJSON *a, const cJSON *b)
{
    const char *x = NULL;
    const char *y = NULL;
    return doc_text(a, "machine", &x, NULL) && doc_text(b, "machine", &y, NULL) &&
           strcmp(x, y) == 0;
}

/* "1": it reached the other; "0". */
static int say_turn(struct part *p, uint32_t round, const cJSON *seen, struct mu_err *err)
{
    char what[32];
    char key[KEY_BYTES];
    double trip = 0;
    (void)snprintf(what, sizeof what, "turn/%u", round);
    return put(p, key_of(key, what, p->me), doc_num(seen, "rtt_us", &trip, NULL) ? "1" : "0", err);
}

static int
await_turn(struct part *p, uint32_t round, uint32_t peer, bool *ret_reached, struct mu_err *err)
{
    char what[32];
    char key[KEY_BYTES];
    struct muster_bytes b = {0};
    (void)snprintf(what, sizeof what, "turn/%u", round);
    enter_stage(p, "waited for", peer);
    int r = await_rank(p, key_of(key, what, peer), peer, silence_limit(p), err);
    *ret_reached =
        r == 0 && muster_store_get(p->store, key, &b, NULL) == 0 && b.n == 1 && b.p[0] == '1';
    muster_bytes_free(&b);
    return r;
}

static void look(struct part *p, uint32_t peer, cJSON *seen)
{
    enter_stage(p, "looked at", peer);
    const struct look_ask ask = {.nodes = p->nodes,
                                 .count = p->count,
                                 .peer = peer,
                                 .limit_ns = p->ask->limit_ns,
                                 .beat = beat,
                                 .arg = p};
    look_at_node(&ask, seen);
}

static bool has_nccl(const cJSON *node)
{
    const char *version = NULL;
    double gpus = 0;
    return doc_num(node, "gpus", &gpus, NULL) && gpus > 0 &&
           doc_text(node, "cuda", &version, NULL) && doc_text(node, "nccl", &version, NULL);
}

static void measure_link(struct part *p, uint32_t round, uint32_t peer, cJSON *seen)
{
    char name[48];
    uint32_t low = peer < p->me ? peer : p->me;
    (void)snprintf(name, sizeof name, "doctor-%u-%u-%u", round, low, low == peer ? p->me : peer);
    enter_stage(p, "measured the link to", peer);
    /* NCCL refuses two ranks on one GPU. */
    struct link_ask ask = {.env = p->env,
                           .me = p->me > peer,
                           .name = name,
                           .gpus = has_nccl(p->ask->facts) && has_nccl(p->nodes[peer]) &&
                                   !doc_is(seen, "same_machine")};
    (void)cJSON_AddItemToObject(seen, "link", link_measure(&ask, beat, p));
}

/* One that cannot connect is no news about the link: both know, and both leave it out. */
static void leave_link_out(cJSON *seen)
{
    cJSON *o = cJSON_AddObjectToObject(seen, "link");
    (void)cJSON_AddStringToObject(o, "unknown", "not measured, as one cannot reach the other");
}

/* Lower ranks first, so that neither disturbs what the other measures. */
static int examine(struct part *p, uint32_t round, uint32_t peer, cJSON *seen, struct mu_err *err)
{
    int r = 0;
    double trip = 0;
    bool reached = false; /* By the other. */
    if (p->me < peer)
        look(p, peer, seen);
    if (p->me < peer)
        r = say_turn(p, round, seen, err);
    if (r == 0)
        r = await_turn(p, round, peer, &reached, err);
    if (r == 0 && p->me > peer)
        look(p, peer, seen);
    if (r == 0 && p->me > peer)
        r = say_turn(p, round, seen, err);
    if (r == 0 && !p->ask->quick) {
        if (reached && doc_num(seen, "rtt_us", &trip, NULL))
            measure_link(p, round, peer, seen);
        else
            leave_link_out(seen);
    }
    if (r != -ETIMEDOUT)
        return r;
    if (p->me > peer)
        (void)cJSON_AddStringToObject(seen, "skipped", "it fell silent before its turn");
    return 0;
}

static int go_round(struct part *p, struct mu_err *err)
{
    for (uint32_t round = 0; round < doc_rounds(p->count); round++) {
        int32_t peer = doc_peer(p->count, round, p->me);
        if (peer < 0 || p->nodes[peer] == NULL)
            continue;
        cJSON *seen = cJSON_CreateObject();
        (void)cJSON_AddNumberToObject(seen, "to", peer);
        (void)cJSON_AddBoolToObject(seen, "same_machine",
                                    is_same_machine(p->ask->facts, p->nodes[peer]));
        (void)cJSON_AddItemToArray(p->looks, seen);
        int r = examine(p, round, (uint32_t)peer, seen, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ------------------------------------------------------------------ gathering */

/* Where it was last: the words behind the number of its beat. */
static char *stage_of(struct part *p, uint32_t rank)
{
    char key[KEY_BYTES];
    struct muster_bytes b = {0};
    if (!is_there(p, key_of(key, "at", rank)) || muster_store_get(p->store, key, &b, NULL) < 0)
        return NULL;
    const char *words = strchr(b.p, ' ');
    char *copy = words != NULL ? mu_strdup(mu_mem_default(), words + 1) : NULL;
    muster_bytes_free(&b);
    return copy;
}

static int gather(struct part *p, struct part_result *ret, struct mu_err *err)
{
    char key[KEY_BYTES];
    int r = 0;
    (void)snprintf(p->stage, sizeof p->stage, "while it gathered what all saw");
    for (uint32_t i = 0; i < p->count; i++) {
        if (ret->nodes[i] == NULL || i == p->me)
            continue;
        /* Once it is over for one reason, what is there already is still taken. */
        if (r == 0)
            r = await_rank(p, key_of(key, "saw", i), i, silence_limit(p), err);
        if (is_there(p, key_of(key, "saw", i)))
            ret->looks[i] = get_json(p, key);
        else
            ret->stage[i] = stage_of(p, i);
        if (r == -ETIMEDOUT)
            r = 0;
    }
    return r;
}

static bool make_room(struct part *p, struct part_result *ret)
{
    const struct mu_mem *mem = mu_mem_default();
    p->nodes = mu_zalloc(mem, p->count * sizeof(cJSON *));
    p->gone = mu_zalloc(mem, p->count * sizeof(bool));
    ret->looks = mu_zalloc(mem, p->count * sizeof(cJSON *));
    ret->stage = mu_zalloc(mem, p->count * sizeof(char *));
    ret->nodes = p->nodes; /* Freed there. */
    ret->count = p->count;
    return p->nodes != NULL && p->gone != NULL && ret->looks != NULL && ret->stage != NULL;
}

int part_take(muster *m, const struct part_ask *ask, struct part_result *ret, struct mu_err *err)
{
    static struct net_port port; /* Its threads live as long as the process. */
    struct part p = {.ask = ask, .env = muster_get_env(m), .store = muster_get_store(m)};
    char key[KEY_BYTES];
    p.me = p.env->rank;
    p.count = p.env->world;
    *ret = (struct part_result){0};
    if (!make_room(&p, ret)) {
        free(p.gone);
        return mu_err_set(err, -ENOMEM, "no memory");
    }
    p.looks = cJSON_CreateArray();
    int r = net_serve(&port, err);
    p.port = port;
    if (r == 0)
        r = meet(&p, err);
    if (r == 0)
        r = go_round(&p, err);
    if (p.me == 0) {
        ret->looks[0] = p.looks;
        int g = gather(&p, ret, r == 0 ? err : NULL);
        r = r == 0 ? g : r;
    } else {
        int s = put_json(&p, key_of(key, "saw", p.me), p.looks, r == 0 ? err : NULL);
        r = r == 0 ? s : r;
        cJSON_Delete(p.looks);
    }
    free(p.gone);
    return r;
}

void part_result_fini(struct part_result *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->nodes != NULL)
            cJSON_Delete(r->nodes[i]);
        if (r->looks != NULL)
            cJSON_Delete(r->looks[i]);
        if (r->stage != NULL)
            free(r->stage[i]);
    }
    free(r->nodes);
    free(r->looks);
    free(r->stage);
    *r = (struct part_result){0};
}
