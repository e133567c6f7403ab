/* What failed, the same on all ranks: NCCL itself tells nobody, so that the store does. */
#include "worker-sdk/src/nccl/nccl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/parse.h"
#include "worker-sdk/src/core/sdk.h"

#define TELL_NS (1 * MU_NS_PER_S)

int nccl_failed(struct nccl *n, struct muster_error *err)
{
    (void)pthread_mutex_lock(&n->lock);
    int r = n->has_failed ? n->cause.code : 0;
    if (r != 0)
        (void)sdk_error(err, r, "%s", n->cause.text);
    (void)pthread_mutex_unlock(&n->lock);
    return r;
}

bool nccl_get_cause(void *self, struct muster_cause *ret)
{
    struct nccl *n = self;
    (void)pthread_mutex_lock(&n->lock);
    bool has_failed = n->has_failed;
    if (has_failed)
        *ret = n->cause;
    (void)pthread_mutex_unlock(&n->lock);
    return has_failed;
}

/* The first one stays. Begins to free the communicator, which ends what runs on the device. */
static void record(struct nccl *n, const struct muster_cause *cause)
{
    (void)pthread_mutex_lock(&n->lock);
    if (!n->has_failed) {
        n->cause = *cause;
        if (n->cause.code >= 0)
            n->cause.code = -EIO;
        n->has_failed = true;
        if (n->comm != NULL)
            n->freeing = nccl_free_start(&n->cuda, n->ctx, n->lib.abort, n->comm, &n->call_lock);
    }
    (void)pthread_mutex_unlock(&n->lock);
}

/* --- The cause in the store: "<code> <phase> <peer> sentence" --- */

/* Cuts the number in front off `*text`. */
static bool take_number(const char **text, int64_t min, int64_t max, int64_t *ret)
{
    char number[24];
    const char *blank = strchr(*text, ' ');
    size_t length = blank == NULL ? sizeof number : (size_t)(blank - *text);
    if (length >= sizeof number)
        return false;
    memcpy(number, *text, length);
    number[length] = '\0';
    *text = blank + 1;
    return mu_parse_i64(number, min, max, "number", ret, NULL) == 0;
}

static void cause_of(const struct muster_bytes *said, struct muster_cause *ret)
{
    struct muster_error heard = {0};
    int64_t phase = 0;
    int64_t peer = -1;
    (void)id_heard(said, &heard); /* It is a failure, whatever it says. */
    const char *text = heard.text;
    if (!take_number(&text, 0, MUSTER_PHASE_ABORT, &phase) ||
        !take_number(&text, -1, INT32_MAX, &peer)) {
        text = "another rank failed, and its cause cannot be read";
    }
    *ret = (struct muster_cause){
        .peer = (int32_t)peer, .code = heard.code, .phase = (enum muster_phase)phase};
    (void)snprintf(ret->text, sizeof ret->text, "%s", text);
}

/* Says the cause and takes over what was said before, if anything was. */
static void agree(struct nccl *n, struct muster_cause *cause)
{
    char text[MUSTER_TEXT_BYTES + 32];
    struct muster_bytes said = {0};
    if (n->marks.store == NULL)
        return;
    (void)snprintf(text, sizeof text, "%d %" PRId32 " %s", (int)cause->phase, cause->peer,
                   cause->text);
    (void)pthread_mutex_lock(&n->store_lock);
    /* No answer: then it stays our own. */
    if (id_say_failed(&n->marks, "cause", cause->code, text, &said, NULL) == 0)
        cause_of(&said, cause);
    (void)pthread_mutex_unlock(&n->store_lock);
    muster_bytes_free(&said);
}

int nccl_fail(struct nccl *n, const struct muster_cause *cause, struct muster_error *err)
{
    struct muster_cause agreed = *cause;
    int r = nccl_failed(n, err);
    if (r < 0)
        return r;
    agree(n, &agreed);
    record(n, &agreed);
    return nccl_failed(n, err);
}

int nccl_fail_with(struct nccl *n,
                   enum muster_phase phase,
                   int32_t peer,
                   const struct muster_error *why,
                   struct muster_error *err)
{
    struct muster_cause cause = {.peer = peer, .code = why->code, .phase = phase};
    (void)snprintf(cause.text, /* Cut is good enough. */
                   sizeof cause.text, "rank %" PRIu32 ": %.230s", n->rank, why->text);
    return nccl_fail(n, &cause, err);
}

void nccl_abort(void *self, const char *why)
{
    struct nccl *n = self;
    struct muster_cause cause = {
        .peer = (int32_t)n->rank, .code = -ECANCELED, .phase = MUSTER_PHASE_ABORT};
    (void)snprintf(cause.text, /* Cut is good enough. */
                   sizeof cause.text, "rank %" PRIu32 " aborted: %.200s", n->rank,
                   why == NULL ? "no reason given" : why);
    if (nccl_failed(n, NULL) < 0)
        return;
    record(n, &cause); /* First here, so that waiters wake at once; then there. */
    agree(n, &cause);
}

/* --- Who is how far --- */

/* Under store_lock. */
static void tell_locked(struct nccl *n)
{
    char key[ID_KEY_BYTES];
    char text[24];
    (void)pthread_mutex_lock(&n->lock);
    uint64_t issued = n->issued;
    (void)pthread_mutex_unlock(&n->lock);
    if (issued == n->told)
        return;
    id_key(&n->marks, "at", n->rank, key);
    int length = snprintf(text, sizeof text, "%" PRIu64, issued);
    n->told_ns = sdk_now_ns();
    if (muster_store_set(n->marks.store, key, text, (size_t)length, NULL) == 0)
        n->told = issued;
}

void nccl_tell(struct nccl *n)
{
    if (n->marks.store == NULL || pthread_mutex_trylock(&n->store_lock) != 0)
        return;
    if (sdk_now_ns() - n->told_ns >= TELL_NS)
        tell_locked(n);
    (void)pthread_mutex_unlock(&n->store_lock);
}

void nccl_look(struct nccl *n)
{
    char key[ID_KEY_BYTES];
    const char *keys[] = {key};
    bool there = false;
    struct muster_bytes said = {0};
    if (n->marks.store == NULL || pthread_mutex_trylock(&n->store_lock) != 0)
        return;
    tell_locked(n);
    id_key(&n->marks, "cause", 0, key);
    if (muster_store_check(n->marks.store, keys, 1, &there, NULL) == 0 && there)
        (void)muster_store_get(n->marks.store, key, &said, NULL);
    (void)pthread_mutex_unlock(&n->store_lock);
    if (said.p != NULL) {
        struct muster_cause cause;
        cause_of(&said, &cause);
        record(n, &cause);
    }
    muster_bytes_free(&said);
}

/* The rank that has issued the fewest operations, if fewer than t. */
static bool find_late(struct nccl *n, uint64_t t, uint32_t *ret_rank, uint64_t *ret_issued)
{
    struct id_keys keys = {0};
    bool found = false;
    size_t bytes = n->size * sizeof(struct muster_bytes);
    MU_CLEANUP(mu_freep) struct muster_bytes *at = mu_zalloc(mu_mem_default(), bytes);
    if (at == NULL || n->marks.store == NULL ||
        id_keys_init(&keys, &n->marks, "at", 0, n->size, NULL) < 0)
        return false;
    (void)pthread_mutex_lock(&n->store_lock);
    tell_locked(n);
    int r = muster_store_multi_get(n->marks.store, keys.list, keys.count, at, NULL);
    (void)pthread_mutex_unlock(&n->store_lock);
    uint64_t least = t;
    for (uint32_t i = 0; r == 0 && i < n->size; i++) {
        int64_t issued = 0;
        if (i != n->rank && mu_parse_i64(at[i].p, 0, INT64_MAX, "operations", &issued, NULL) == 0 &&
            (uint64_t)issued < least) {
            least = (uint64_t)issued;
            *ret_rank = i;
            found = true;
        }
    }
    for (uint32_t i = 0; i < n->size; i++)
        muster_bytes_free(&at[i]);
    id_keys_fini(&keys);
    *ret_issued = least;
    return found;
}

int nccl_fail_late(struct nccl *n, muster_ticket t, int64_t timeout_ns, struct muster_error *err)
{
    uint32_t late = 0;
    uint64_t issued = 0;
    struct muster_cause cause = {.peer = -1, .code = -ETIMEDOUT, .phase = MUSTER_PHASE_WAIT};
    struct mu_buf text;
    char span[MU_SPAN_BYTES];
    mu_buf_init(&text, mu_mem_default());
    (void)mu_buf_addf(&text, /* Without memory the sentence is empty; the code stays. */
                      "%s: operation %" PRIu64 " is not done on rank %" PRIu32 " after %s: ",
                      n->name, t, n->rank, mu_span(timeout_ns, span));
    if (find_late(n, t, &late, &issued)) {
        cause.peer = (int32_t)late;
        (void)mu_buf_addf(&text, "rank %" PRIu32, late);
        (void)pthread_mutex_lock(&n->store_lock);
        id_add_place(&n->marks, late, &text);
        (void)pthread_mutex_unlock(&n->store_lock);
        (void)mu_buf_addf(&text, " has issued only %" PRIu64, issued);
    } else {
        (void)mu_buf_adds(&text,
                          "all ranks have issued it; NCCL_DEBUG=INFO shows what it waits for");
    }
    (void)snprintf(cause.text, sizeof cause.text, "%s", mu_buf_cstr(&text));
    mu_buf_fini(&text);
    return nccl_fail(n, &cause, err);
}
