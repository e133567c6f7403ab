/* The server's whole life: start, the end of every turn, close, counts. */
#include "rendezvous/server/server.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <utlist.h>

#include "base/clock.h"
#include "base/limits.h"
#include "rendezvous/server/internal.h"
#include "rendezvous/server/pool.h"

struct srv_config srv_config_default(void)
{
    return (struct srv_config){.services = SRV_ALL,
                               .host = "",
                               .port = 29500,
                               .listen_fd = -1,
                               .store = store_limits_default,
                               .connections_max = MU_CONNECTIONS_MAX,
                               .first_bytes_ns = MU_FIRST_BYTES_NS,
                               .lease_ns = MU_LEASE_NS,
                               .beat_ns = MU_BEAT_NS,
                               .fence_ns = MU_FENCE_NS,
                               .recovery_ns = MU_LEASE_NS,
                               .quarantine_failures = MU_QUARANTINE_FAILURES,
                               .quarantine_window_ns = MU_QUARANTINE_WINDOW_NS,
                               .state_dir = "",
                               .version = ""};
}

void srv_settle(struct srv *s)
{
    if (s->closing)
        return;
    client_flush_ready(s);
    agent_flush_dirty(s);
    state_settle(s);
    watch_free_dead(s);
}

static void srv_free(struct srv *s)
{
    struct host *h = NULL;
    struct host *next = NULL;
    HASH_ITER(hh, s->hosts, h, next)
    {
        HASH_DEL(s->hosts, h);
        mu_mem_free(mu_mem_default(), h);
    }
    jobs_free_all(s);
    srv_pool_free(s);
    state_free(s);
    events_free(s);
    mu_buf_fini(&s->metrics.page);
    watch_free_dead(s);
    store_free(s->store);
    mu_buf_fini(&s->decoded);
    mu_buf_fini(&s->encoded);
    status_release(s->status);
    mu_mem_free(mu_mem_default(), s->scratch);
    mu_mem_free(mu_mem_default(), s->version);
    mu_mem_free(mu_mem_default(), s->state_dir);
    mu_mem_free(mu_mem_default(), s->http_path);
    mu_mem_free(mu_mem_default(), s->mark_path);
    mu_prover_fini(&s->prover);
    mu_mem_free(mu_mem_default(), s);
}

/* Hash order must not be known to peers. */
static uint64_t random_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)mu_now_ns() ^ (uint64_t)getpid()
                                           << 40; /* Early in a boot: better than none. */
    return seed;
}

static char *copy(const char *text, bool *oom)
{
    if (text == NULL)
        return NULL;
    char *p = mu_strdup(mu_mem_default(), text);
    *oom = *oom || p == NULL;
    return p;
}

/* Everything that needs memory and no descriptor. NULL: there is none. */
static struct srv *srv_new(uv_loop_t *loop, const struct srv_config *config)
{
    struct srv *s = mu_zalloc(mu_mem_default(), sizeof *s);
    if (s == NULL)
        return NULL;
    bool oom = false;
    s->loop = loop;
    s->config = *config;
    s->epoll_fd = -1;
    s->listen_fd = -1;
    s->listener.fd = -1;
    s->loop_watch.fd = -1;
    s->spare_fd = -1;
    s->now_ns = mu_now_ns();
    s->started_ns = s->now_ns;
    s->metrics.since_unix_ms = mu_unix_ms();
    s->sweep_at_ns = MU_NEVER;
    s->job_timer_at_ns = MU_NEVER;
    mu_buf_init(&s->decoded, mu_mem_default());
    mu_buf_init(&s->encoded, mu_mem_default());
    mu_buf_init(&s->metrics.page, mu_mem_default());
    s->version = copy(config->version, &oom);
    s->state_dir = copy(config->state_dir, &oom);
    s->http_path = copy(config->http_module, &oom);
    s->config.version = s->version;
    s->scratch = mu_alloc(mu_mem_default(), SRV_SCRATCH_BYTES);
    if ((config->services & SRV_STORE) != 0)
        s->store = store_new(mu_mem_default(), &config->store, random_seed());
    if (oom || s->scratch == NULL || ((config->services & SRV_STORE) != 0 && s->store == NULL)) {
        srv_free(s);
        return NULL;
    }
    return s;
}

static void start_timer(struct srv *s, uv_timer_t *timer)
{
    (void)uv_timer_init(s->loop, timer); /* Never fails. */
    timer->data = s;
    s->handles++;
}

int srv_start(uv_loop_t *loop,
              const struct srv_config *config,
              struct srv **ret,
              struct mu_err *err)
{
    struct srv *s = srv_new(loop, config);
    if (s == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for a server");
    int r = config->token != NULL && mu_token_is_set(config->token)
                ? mu_prover_init(&s->prover, config->token, NULL, err)
                : 0;
    s->config.token = NULL; /* The caller's. */
    if (r == 0 && srv_pool_start(s) < 0)
        r = mu_err_set(err, -ENOMEM, "no memory for a server");
    if (r == 0)
        r = state_open(s, err);
    if (r == 0)
        r = watch_init(s, err);
    if (r == 0)
        r = srv_listen(s, err);
    if (r == 0)
        r = watch_start(s, err);
    if (r < 0) {
        if (s->listen_fd == config->listen_fd)
            s->listen_fd = -1; /* Stays the caller's. */
        srv_unlisten(s);
        if (s->epoll_fd >= 0)
            (void)close(s->epoll_fd);
        srv_free(s);
        return r;
    }
    start_timer(s, &s->sweep);
    start_timer(s, &s->job_timer);
    start_timer(s, &s->patience);
    start_timer(s, &s->listen_pause);
    (void)uv_idle_init(s->loop, &s->flush_again); /* Never fails. */
    s->flush_again.data = s;
    s->handles++;
    start_timer(s, &s->probe_timer);
    bool marked = (config->services & SRV_AGENTS) != 0 && mark_find(s);
    if (marked)
        s->not_before_ns = s->now_ns + config->recovery_ns; /* For the jobs that are loaded, too. */
    if (state_load(s) || marked) {
        s->not_before_ns = s->now_ns + config->recovery_ns;
        mu_log(
            MU_WARN, "server.recovers",
            "ms=%lld text=\"the last life of this server ended while a round ran: agents are heard "
            "out before a first round begins\"",
            (long long)(config->recovery_ns / MU_NS_PER_MS));
    }
    *ret = s;
    return 0;
}

uint16_t srv_port(const struct srv *s)
{
    return s->port;
}

const char *srv_address(const struct srv *s)
{
    return s->address;
}

void srv_handle_closed(struct srv *s)
{
    MU_ASSERT(s->handles > 0);
    if (--s->handles > 0 || !s->closing)
        return;
    void (*done)(void *arg) = s->done;
    void *arg = s->done_arg;
    srv_free(s);
    if (done != NULL)
        done(arg);
}

static void on_handle_closed(uv_handle_t *h)
{
    srv_handle_closed(h->data);
}

void srv_close(struct srv *s, void (*done)(void *arg), void *arg)
{
    MU_ASSERT(!s->closing);
    if (s->closed != NULL)
        *s->closed = true;
    s->closing = true; /* From here on nothing that closes is news for a job. */
    s->done = done;
    s->done_arg = arg;
    s->now_ns = mu_now_ns();
    events_stop(s);
    http_stop(s);
    probe_cancel_all(s);
    srv_pool_close(s);
    state_close(s);
    for (size_t l = 0; l < LIST_COUNT; l++)
        while (s->lists[l] != NULL)
            conn_close(s->lists[l]);
    uv_close((uv_handle_t *)&s->sweep, on_handle_closed);
    uv_close((uv_handle_t *)&s->job_timer, on_handle_closed);
    uv_close((uv_handle_t *)&s->patience, on_handle_closed);
    uv_close((uv_handle_t *)&s->listen_pause, on_handle_closed);
    uv_close((uv_handle_t *)&s->flush_again, on_handle_closed);
    uv_close((uv_handle_t *)&s->probe_timer, on_handle_closed);
    srv_unlisten(s);
    watch_stop(s);
}

int srv_renew_store(struct srv *s)
{
    struct store *fresh = store_new(mu_mem_default(), &s->config.store, random_seed());
    struct conn *c = NULL;
    struct conn *next = NULL;
    if (fresh == NULL)
        return -ENOMEM;
    for (size_t l = 0; l < LIST_COUNT; l++) {
        DL_FOREACH_SAFE(s->lists[l], c, next)
        {
            if (c->kind == CONN_STORE)
                conn_close(c);
        }
    }
    store_free(s->store);
    s->store = fresh;
    return 0;
}

void srv_open_store(struct srv *s)
{
    s->config.open_store = true;
}

uint32_t srv_agent_count(const struct srv *s)
{
    return s->agent_count;
}

uint32_t srv_live_job_count(const struct srv *s)
{
    return s->live_jobs;
}
