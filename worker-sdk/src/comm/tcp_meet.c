/* The start of a communicator over sockets: ranks find each other through the store.
 *
 * All ranks get a token and the number of this start by the hand-out of ids (muster/id.h), which
 * also names who is missing. Then each listens, publishes where, waits for the others' addresses,
 * and connects. Whoever fails on the way says so in the store and on the links that are there, and
 * everybody reports the first failure. */
#include "worker-sdk/src/comm/tcp_meet.h"

#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <muster/id.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/parse.h"
#include "worker-sdk/src/agent/progress_line.h"
#include "worker-sdk/src/core/sdk.h"
#include "worker-sdk/src/store/store_client.h"
#include "worker-sdk/src/store/store_wire.h"
#include "worker-sdk/src/comm/tcp_mesh.h"

#define KEY_BYTES 32
#define NAME_BYTES 80
#define PLACE_BYTES 128
/* "1 <port> <address> <unix name> <place> <host>" */
#define CARD_BYTES 512

struct meet {
    muster *m;
    const struct muster_comm_options *o;
    struct muster_env env;
    char name[NAME_BYTES];
    uint64_t number;
    bool entered;
    int64_t deadline_ns;
    muster_store *store;
    struct mesh_start start;
    struct mesh_peer *peers;
    char place[PLACE_BYTES]; /* Ranks with the same place reach each other by Unix sockets. */
};

static int make_token(void *arg, void *ret_id, size_t id_bytes, struct muster_error *err)
{
    (void)arg;
    return mesh_random(ret_id, id_bytes) < 0
               ? sdk_error(err, -EIO, "the kernel gives no random bytes")
               : 0;
}

/* --- where am I --- */

/* This boot of this kernel, and this network name space of it: abstract Unix sockets are per name
 * space. "-": not to be found out, then everybody is elsewhere. */
static void find_place(char *ret)
{
    char boot[40] = "";
    struct stat ns;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f != NULL) {
        if (fgets(boot, sizeof boot, f) == NULL)
            boot[0] = '\0';
        (void)fclose(f);
    }
    boot[strcspn(boot, "\n ")] = '\0';
    if (boot[0] == '\0' || stat("/proc/self/ns/net", &ns) < 0)
        (void)snprintf(ret, PLACE_BYTES, "-");
    else
        (void)snprintf(ret, PLACE_BYTES, "%s-%llu", boot, (unsigned long long)ns.st_ino);
}

/* The address from which this host reaches the store: others reach us there, too. */
static void address_to_store(const struct meet *k, char *ret)
{
    struct wire w = {.fd = -1};
    ret[0] = '\0';
    if (wire_find(&w, k->m->store_host, k->m->store_port, k->deadline_ns, NULL) < 0)
        return;
    for (size_t i = 0; i < w.address_count && ret[0] == '\0'; i++) {
        const struct mu_addr *to = &w.address[i];
        struct sockaddr_storage own;
        socklen_t n = sizeof own;
        MU_CLEANUP(mu_closep) int fd = socket(to->ss.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        /* Sends nothing: asks the kernel for the route. */
        if (fd >= 0 && connect(fd, (const struct sockaddr *)&to->ss, to->len) == 0 &&
            getsockname(fd, (struct sockaddr *)&own, &n) == 0)
            (void)mu_addr_host((const struct sockaddr *)&own, ret);
    }
}

/* Loopback for a job on one host, else an address that other hosts can use. */
static void choose_address(const struct meet *k, char *ret)
{
    (void)snprintf(ret, MU_ADDR_BYTES, "127.0.0.1");
    if (k->env.local_world == k->env.world)
        return;
    char found[MU_ADDR_BYTES];
    address_to_store(k, found);
    if (found[0] == '\0' || mu_addr_is_loopback(found))
        mu_addr_primary(found);
    if (found[0] != '\0')
        (void)snprintf(ret, MU_ADDR_BYTES, "%s", found);
}

/* --- cards: where each rank listens --- */

static bool is_wanted(const char *variable)
{
    const char *v = getenv(variable);
    return v == NULL || strcmp(v, "0") != 0;
}

static bool unix_wanted(void)
{
    return is_wanted("MUSTER_COMM_UNIX");
}

static int write_card(struct meet *k, char *ret, struct muster_error *err)
{
    char address[MU_ADDR_BYTES], unix_name[MESH_UNIX_BYTES] = "-", host[TCP_HOST_BYTES] = "";
    struct mu_err e = {0};
    uint16_t port = 0;
    find_place(k->place);
    choose_address(k, address);
    k->start.tcp_listener = mu_listen(address, 0, MU_LISTEN_BACKLOG, &port, &e);
    if (k->start.tcp_listener < 0)
        return sdk_error_take(err, &e);
    if (unix_wanted() && strcmp(k->place, "-") != 0) {
        k->start.unix_listener = mesh_listen_unix(unix_name, err);
        if (k->start.unix_listener < 0)
            return k->start.unix_listener;
    }
    if (gethostname(host, sizeof host) < 0 || host[0] == '\0')
        (void)snprintf(host, sizeof host, "?");
    host[sizeof host - 1] = '\0';
    (void)snprintf(ret, CARD_BYTES, "1 %u %s %s %s %s", port, address, unix_name, k->place, host);
    return 0;
}

/* What another process wrote: nothing of it is trusted. */
static int read_card(struct meet *k, uint32_t rank, char *text, struct muster_error *err)
{
    char *part[6], *next = text;
    size_t n = 0;
    uint32_t port = 0;
    struct mesh_peer *p = &k->peers[rank];
    while (next != NULL && n < MU_COUNT(part))
        part[n++] = strsep(&next, " ");
    if (n != MU_COUNT(part) || next != NULL || strcmp(part[0], "1") != 0 ||
        mu_parse_u32(part[1], 1, UINT16_MAX, "port", &port, NULL) < 0 ||
        mu_addr_parse(part[2], (uint16_t)port, &p->address) < 0)
        return sdk_error(
            err, -EPROTO,
            "rank %u wrote an address that cannot be read: use one version of muster on all ranks",
            rank);
    (void)snprintf(p->host, sizeof p->host, "%s", part[5]);
    bool is_here = strcmp(part[4], k->place) == 0 && strcmp(part[3], "-") != 0 && unix_wanted();
    (void)snprintf(p->unix_name, sizeof p->unix_name, "%s", is_here ? part[3] : "");
    return 0;
}

struct keys {
    char (*text)[KEY_BYTES];
    const char **list;
    struct muster_bytes *values;
};

static void keys_fini(struct keys *s, uint32_t count)
{
    for (uint32_t i = 0; s->values != NULL && i < count; i++)
        muster_bytes_free(&s->values[i]);
    mu_mem_free(mu_mem_default(), s->values);
    mu_mem_free(mu_mem_default(), s->list);
    mu_mem_free(mu_mem_default(), s->text);
}

static int keys_init(struct keys *s, const struct meet *k, struct muster_error *err)
{
    const struct mu_mem *mem = mu_mem_default();
    s->text = mu_alloc(mem, k->start.size * sizeof *s->text);
    s->list = mu_alloc(mem, k->start.size * sizeof *s->list);
    s->values = mu_zalloc(mem, k->start.size * sizeof *s->values);
    if (s->text == NULL || s->list == NULL || s->values == NULL)
        return sdk_error(err, -ENOMEM, "no memory for the addresses of %u ranks", k->start.size);
    for (uint32_t i = 0; i < k->start.size; i++) {
        (void)snprintf(s->text[i], KEY_BYTES, "%llu/%u", (unsigned long long)k->number, i);
        s->list[i] = s->text[i];
    }
    return 0;
}

static int take_cards(struct meet *k, struct keys *s, struct muster_error *err)
{
    int r = store_wait_until(k->store, "the addresses of all ranks", s->list, k->start.size,
                             k->deadline_ns, err);
    if (r == 0)
        r = muster_store_multi_get(k->store, s->list, k->start.size, s->values, err);
    for (uint32_t i = 0; i < k->start.size && r == 0; i++) {
        /* A rank that failed before it listened wrote "!" and a sentence. */
        if (s->values[i].n > 0 && s->values[i].p[0] == '!')
            r = sdk_error(err, -ECANCELED, "rank %u: %.200s", i, s->values[i].p + 1);
        else
            r = read_card(k, i, s->values[i].p, err);
    }
    return r;
}

static int exchange_cards(struct meet *k, struct muster_error *err)
{
    char card[CARD_BYTES];
    struct keys s = {0};
    int r = keys_init(&s, k, err);
    if (r == 0)
        r = write_card(k, card, err);
    if (r < 0)
        (void)snprintf(card, sizeof card, "!%s", err->text);
    if (s.list != NULL && s.text != NULL) {
        int set = muster_store_set(k->store, s.list[k->start.rank], card, strlen(card),
                                   r == 0 ? err : NULL);
        r = r == 0 ? set : r;
    }
    if (r == 0)
        r = take_cards(k, &s, err);
    keys_fini(&s, k->start.size);
    return r;
}

/* --- all of it --- */

static int enter(struct meet *k, struct muster_error *err)
{
    struct muster_id_options id = MUSTER_ID_OPTIONS_INIT;
    (void)snprintf(k->name, sizeof k->name, "comm/%s", k->o->name);
    id.name = k->name;
    id.same = "tcp 2";
    id.id_bytes = MESH_TOKEN_BYTES;
    id.maker = make_token;
    int64_t left_ns = k->deadline_ns - mu_now_ns();
    id.timeout_ns = k->deadline_ns == MU_NEVER ? -1 : left_ns > 0 ? left_ns : 0;
    int r = muster_id_exchange(k->m, &id, k->start.token, &k->number, err);
    k->entered = r == 0;
    char prefix[NAME_BYTES + 8];
    (void)snprintf(prefix, sizeof prefix, "tcp/%s/", k->o->name);
    if (r == 0)
        r = sdk_store_open(k->m, prefix, &k->store, err);
    if (r == 0)
        (void)store_limit(k->store, sdk_after_ns(k->deadline_ns, STORE_WORDS_NS));
    return r;
}

static int connect_ranks(struct meet *k, struct tcp_fabric *ret, struct muster_error *err)
{
    struct muster_cause cause;
    k->start.peers = k->peers;
    k->start.shares_memory = is_wanted("MUSTER_COMM_SHM");
    k->start.deadline_ns = k->deadline_ns == MU_NEVER ? INT64_MAX : k->deadline_ns;
    if (mesh_connect(&k->start, ret, &cause) < 0) {
        if (cause.peer >= 0 && cause.peer != (int32_t)k->start.rank)
            line_blame(cause.peer);
        return sdk_error(err, cause.code, "%s", cause.text);
    }
    ret->hosts = mu_zalloc(mu_mem_default(), k->start.size * sizeof *ret->hosts);
    for (uint32_t i = 0; ret->hosts != NULL && i < k->start.size; i++)
        (void)snprintf(ret->hosts[i], sizeof ret->hosts[i], "%s", k->peers[i].host);
    return 0;
}

/* The first rank to fail is everybody's cause: later ones fail because of it. */
static int agree_on_failure(struct meet *k, int r, struct muster_error *err)
{
    struct muster_error first = {0};
    if (!k->entered)
        return r; /* The exchange has told all ranks itself. */
    (void)muster_id_failed(k->m, k->name, k->number, err, NULL); /* Best effort: we fail anyway. */
    int said = muster_id_check(k->m, k->name, k->number, &first);
    if (said >= 0 || first.text[0] == '\0')
        return r;
    *err = first;
    return said;
}

static int meet(struct meet *k, struct tcp_fabric *ret, struct muster_error *err)
{
    int r = enter(k, err);
    if (r == 0) {
        k->peers = mu_zalloc(mu_mem_default(), k->start.size * sizeof *k->peers);
        r = k->peers != NULL ? 0 : sdk_error(err, -ENOMEM, "no memory for %u peers", k->start.size);
    }
    if (r == 0)
        r = exchange_cards(k, err);
    if (r == 0)
        r = connect_ranks(k, ret, err);
    if (r < 0)
        r = agree_on_failure(k, r, err);
    else
        (void)muster_id_left(k->m, k->name, k->number,
                             NULL); /* For those who look; we are connected. */
    return r;
}

int tcp_meet(muster *m,
             const struct muster_comm_options *o,
             int64_t deadline_ns,
             struct tcp_fabric *ret,
             struct muster_error *err)
{
    struct muster_error e = {0}; /* The caller's may be NULL; ours is read on the way. */
    const struct muster_env *env = muster_get_env(m);
    if (env->world > TCP_RANKS_MAX)
        return sdk_error(
            err, -EINVAL,
            "the tcp backend connects all ranks with each other and takes %u at most, not %u",
            TCP_RANKS_MAX, env->world);
    struct meet k = {.m = m, .o = o, .env = *env, .deadline_ns = deadline_ns};
    k.start = (struct mesh_start){
        .rank = env->rank, .size = env->world, .tcp_listener = -1, .unix_listener = -1};
    int r = meet(&k, ret, &e);
    muster_store_close(k.store);
    mu_mem_free(mu_mem_default(), k.peers);
    if (k.start.tcp_listener >= 0)
        (void)close(k.start.tcp_listener);
    if (k.start.unix_listener >= 0)
        (void)close(k.start.unix_listener);
    return r == 0 ? 0 : sdk_error(err, r, "communicator '%s': %s", o->name, e.text);
}
