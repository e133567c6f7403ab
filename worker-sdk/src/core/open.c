/* The handle: who am I, where is the job's store, and, where no launcher serves one, serving it. */
#include "worker-sdk/src/core/sdk.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/mem.h"
#include "base/parse.h"
#include "base/str.h"
#include "worker-sdk/src/core/pmi.h"
#include "worker-sdk/src/store/store_client.h"
#include "worker-sdk/src/store/store_serve.h"

/* A goodbye is a courtesy: whoever it is for may be gone. */
#define GOODBYE_NS (2 * MU_NS_PER_S)
/* How long rank 0 keeps its store for ranks that have not said goodbye. */
#define DRAIN_NS (60 * MU_NS_PER_S)
/* Until the store of an earlier handle has ended. */
#define JOIN_AGAIN_MS 5

/* --- where the store is --- */

static bool is_one_host(const struct muster_env *env)
{
    return env->local_world == env->world;
}

static int place(muster *m, const char *host, uint16_t port, struct muster_error *err)
{
    if (mu_strcopy(m->store_host, sizeof m->store_host, host) < 0)
        return sdk_error(err, -EINVAL, "a host name has at most %zu bytes",
                         sizeof m->store_host - 1);
    m->store_port = port;
    return 0;
}

/* Loopback where all ranks are on this host: then nobody else can reach it. */
static int serve(muster *m, uint16_t port, uint16_t *ret_port, struct muster_error *err)
{
    return sdk_serve_start(is_one_host(&m->env) ? "127.0.0.1" : "", port, &m->serve, ret_port, err);
}

/* The environment says where; rank 0 serves there. On one host the name does not matter, and may
 * stand for an address where a store on loopback is not. */
static int meet_at_address(muster *m, struct muster_error *err)
{
    uint16_t port = m->env.store_port;
    bool near = m->env.rank == 0 || is_one_host(&m->env);
    int r = place(m, near ? "127.0.0.1" : m->env.store_host, port, err);
    if (r == 0 && m->env.rank == 0)
        r = serve(m, port, &port, err);
    return r;
}

/* Serve at any port and write down where: "address:port". */
static int serve_somewhere(muster *m, char *ret, size_t bytes, struct muster_error *err)
{
    char address[MU_ADDR_BYTES] = "127.0.0.1";
    uint16_t port = 0;
    if (!is_one_host(&m->env))
        mu_addr_primary(address);
    if (address[0] == '\0')
        return sdk_error(err, -EADDRNOTAVAIL,
                         "this host has no address that others can reach: set MASTER_ADDR and "
                         "MASTER_PORT");
    int r = serve(m, 0, &port, err);
    if (r == 0)
        (void)snprintf(ret, bytes, strchr(address, ':') != NULL ? "[%s]:%u" : "%s:%u", address,
                       port);
    return r;
}

/* The value of PMI_FD; it was seen to be set. */
static int pmi_fd(int *ret, struct muster_error *err)
{
    struct mu_err why = {0};
    uint32_t fd = 0;
    if (mu_parse_u32(getenv("PMI_FD"), 0, INT32_MAX, "PMI_FD", &fd, &why) < 0)
        return sdk_error_take(err, &why);
    *ret = (int)fd;
    return 0;
}

static int meet_by_pmi(muster *m, int64_t deadline_ns, struct muster_error *err)
{
    char mine[MU_ADDR_BYTES + 16] = "";
    char where[MU_ADDR_BYTES + 16] = "";
    struct mu_err why = {0};
    struct mu_endpoint at = {0};
    int r = m->env.rank == 0 ? serve_somewhere(m, mine, sizeof mine, err) : 0;
    if (r == 0)
        r = pmi_fd(&m->pmi_fd, err);
    if (r == 0)
        r = sdk_pmi_share(m->pmi_fd, "muster-store", m->env.rank == 0 ? mine : NULL, deadline_ns,
                          where, sizeof where, err);
    if (r < 0)
        return r;
    if (mu_parse_endpoint(where, -1, "rank 0's store", &at, &why) < 0)
        return sdk_error_take(err, &why);
    (void)mu_strcopy(m->env.store_host, sizeof m->env.store_host, at.host); /* The same size. */
    m->env.store_port = at.port;
    return place(m, at.host, at.port, err);
}

static int find_store(muster *m, int64_t deadline_ns, struct muster_error *err)
{
    const struct muster_env *env = &m->env;
    if (env->store_is_served)
        return place(m, env->store_host, env->store_port, err);
    if (env->store_port != 0)
        return meet_at_address(m, err);
    if (getenv("PMI_FD") != NULL)
        return meet_by_pmi(m, deadline_ns, err);
    return sdk_error(err, -EDESTADDRREQ,
                     "this mpiexec does not tell where rank 0 is: set MASTER_ADDR and MASTER_PORT "
                     "to its host and a free port there (mpiexec -x MASTER_ADDR -x MASTER_PORT)");
}

/* --- this round's keys --- */

int sdk_store_open(muster *m, const char *sub_prefix, muster_store **ret, struct muster_error *err)
{
    char prefix[sizeof m->prefix + 128];
    if (m->store_port == 0)
        return sdk_error(err, -ENOTCONN, "a world of one has no store");
    int n = snprintf(prefix, sizeof prefix, "%s%s", m->prefix, sub_prefix);
    if (n < 0 || (size_t)n >= sizeof prefix)
        return sdk_error(err, -ENAMETOOLONG, "the prefix '%.60s' is too long", sub_prefix);
    int64_t limit_ns = store_limit_ns(m->store);
    int64_t timeout_ns = m->timeout_ns;
    if (limit_ns < sdk_deadline_ns(timeout_ns)) {
        int64_t left_ns = limit_ns - sdk_now_ns();
        timeout_ns = left_ns > 0 ? left_ns : 0;
    }
    int r = muster_store_open(m->store_host, m->store_port, prefix, timeout_ns, ret, err);
    if (r == 0)
        muster_store_set_timeout(*ret, m->timeout_ns);
    return r;
}

/* Connect and leave the mark by which rank 0 knows whom it serves. A mark that was there before is
 * of an earlier handle of this process: its store lives a moment longer, on the same port, and ends
 * when the last has left it. -EAGAIN: that one. */
static int join_once(muster *m, int64_t left_ns, struct muster_error *err)
{
    char key[32];
    int64_t times = 0;
    (void)snprintf(key, sizeof key, "here/%u", m->env.rank);
    int r = muster_store_open(m->store_host, m->store_port, m->prefix, left_ns, &m->store, err);
    if (r == 0 && !m->env.store_is_served)
        r = muster_store_add(m->store, key, 1, &times, err);
    if (r == 0 && times <= 1) {
        muster_store_set_timeout(m->store, m->timeout_ns);
        return 0;
    }
    muster_store_close(m->store);
    m->store = NULL;
    if (r == 0 || r == -ECONNRESET || r == -EPIPE)
        r = sdk_error(err, -EAGAIN,
                      "the store at %s port %u is that of an earlier handle: rank 0 has not opened "
                      "its new one",
                      m->store_host, m->store_port);
    return r;
}

static int join(muster *m, int64_t deadline_ns, struct muster_error *err)
{
    for (;;) {
        int64_t now_ns = sdk_now_ns();
        int64_t left_ns = deadline_ns == MU_NEVER ? -1
                          : deadline_ns > now_ns  ? deadline_ns - now_ns
                                                  : 0;
        int r = join_once(m, left_ns, err);
        if (r != -EAGAIN)
            return r;
        if (left_ns == 0)
            return sdk_error_wrap(err, -ETIMEDOUT, "time is over");
        (void)poll(NULL, 0, JOIN_AGAIN_MS);
    }
}

static int open_store(muster *m, struct muster_error *err)
{
    int64_t deadline_ns = sdk_deadline_ns(m->timeout_ns);
    if (m->env.world == 1 && !m->env.store_is_served)
        return 0;
    int r = find_store(m, deadline_ns, err);
    return r < 0 ? r : join(m, deadline_ns, err);
}

/* To rank 0, which serves: this rank needs the store no more. */
static void say_goodbye(muster *m)
{
    char key[32];
    (void)snprintf(key, sizeof key, "gone/%u", m->env.rank);
    muster_store_set_timeout(m->store, GOODBYE_NS);
    (void)muster_store_set(m->store, key, "", 0,
                           NULL); /* Rank 0 may have ended: nobody waits then. */
}

/* --- the handle --- */

int muster_open(const struct muster_options *options, muster **ret, struct muster_error *err)
{
    struct muster_options o = MUSTER_OPTIONS_INIT;
    if (options != NULL && options->size >= sizeof o)
        o = *options;
    else if (options != NULL)
        return sdk_error(err, -EINVAL,
                         "muster_options: size is %zu; begin with "
                         "MUSTER_OPTIONS_INIT",
                         options->size);
    muster *m = mu_zalloc(mu_mem_default(), sizeof *m);
    if (m == NULL)
        return sdk_error(err, -ENOMEM, "no memory for a handle");
    m->agent_fd = -1;
    m->pmi_fd = -1;
    m->timeout_ns = o.timeout_ns;
    int r = muster_env_read(&m->env, err);
    (void)snprintf(m->prefix, sizeof m->prefix, "muster/%s/%u/", m->env.run_id, m->env.round);
    if (r == 0)
        r = open_store(m, err);
    if (r == 0)
        r = sdk_agent_open(m, err);
    if (r < 0) {
        muster_store_close(m->store);
        sdk_serve_stop(m->serve);
        mu_mem_free(mu_mem_default(), m);
        return r;
    }
    *ret = m;
    return 0;
}

/* The ranks need rank 0's store until their last request: they say goodbye, and it waits for that.
 */
void muster_close(muster *m)
{
    if (m == NULL)
        return;
    sdk_agent_close(m);
    if (m->store != NULL && m->serve == NULL && !m->env.store_is_served)
        say_goodbye(m);
    muster_store_close(m->store);
    if (m->serve != NULL) {
        int64_t limit_ns =
            m->timeout_ns >= 0 && m->timeout_ns < DRAIN_NS ? m->timeout_ns : DRAIN_NS;
        /* Whoever is late has had its time; there is nobody to tell. */
        (void)sdk_serve_drain(m->serve, m->prefix, m->env.world, sdk_deadline_ns(limit_ns), NULL);
        sdk_serve_stop(m->serve);
    }
    if (m->pmi_fd >= 0)
        (void)sdk_pmi_goodbye(m->pmi_fd, sdk_deadline_ns(GOODBYE_NS),
                              NULL); /* mpiexec may be gone. */
    mu_mem_free(mu_mem_default(), m);
}

const struct muster_env *muster_get_env(const muster *m)
{
    return &m->env;
}

bool muster_is_main(const muster *m)
{
    return m->env.rank == 0;
}

muster_store *muster_get_store(muster *m)
{
    return m->store;
}
