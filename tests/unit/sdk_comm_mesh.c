/* Connecting ranks over loopback and Unix sockets, with strangers about. Ranks are threads. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "tests/unit/sdk_comm_rig.h"
#include "worker-sdk/src/comm/tcp_mesh.h"

struct town {
    struct rig rig;
    uint32_t size;
    bool is_unix;
    uint32_t unshared; /* This rank wants no shared memory; UINT32_MAX: each does. */
    uint32_t absent;   /* Listens, and does nothing more; UINT32_MAX: none. */
    int64_t timeout_ns;
    struct mesh_peer peers[RIG_RANKS_MAX];
    int listeners[RIG_RANKS_MAX];
    int result[RIG_RANKS_MAX];
    struct muster_cause cause[RIG_RANKS_MAX];
    struct tcp_fabric fabric[RIG_RANKS_MAX];
    uint8_t token[RIG_RANKS_MAX][MESH_TOKEN_BYTES];
};

static void found(struct town *t, uint32_t size, bool is_unix)
{
    *t = (struct town){.size = size,
                       .is_unix = is_unix,
                       .absent = UINT32_MAX,
                       .unshared = UINT32_MAX,
                       .timeout_ns = 60 * MU_NS_PER_S};
    t->rig.size = size;
    for (uint32_t i = 0; i < size; i++) {
        uint16_t port = 0;
        (void)snprintf(t->peers[i].host, sizeof t->peers[i].host, "h%u", i);
        t->listeners[i] = is_unix ? mesh_listen_unix(t->peers[i].unix_name, NULL)
                                  : mu_listen("127.0.0.1", 0, 64, &port, NULL);
        assert_true(t->listeners[i] >= 0);
        if (!is_unix)
            assert_int_equal(mu_addr_parse("127.0.0.1", port, &t->peers[i].address), 0);
        memset(t->token[i], 7, MESH_TOKEN_BYTES);
        t->token[i][MESH_TOKEN_BYTES - 1] = 8;
    }
}

static void go(void *arg, uint32_t rank)
{
    struct town *t = arg;
    if (rank == t->absent)
        return;
    struct mesh_start s = {.rank = rank,
                           .size = t->size,
                           .peers = t->peers,
                           .tcp_listener = t->is_unix ? -1 : t->listeners[rank],
                           .unix_listener = t->is_unix ? t->listeners[rank] : -1,
                           .shares_memory = rank != t->unshared,
                           .deadline_ns = mu_now_ns() + t->timeout_ns};
    memcpy(s.token, t->token[rank], sizeof s.token);
    t->result[rank] = mesh_connect(&s, &t->fabric[rank], &t->cause[rank]);
    (void)close(t->listeners[rank]); /* As after a start, so that who still connects hears of it. */
    t->listeners[rank] = -1;
}

static void leave(struct town *t)
{
    for (uint32_t i = 0; i < t->size; i++) {
        tcp_fabric_fini(&t->fabric[i]);
        if (t->listeners[i] >= 0)
            (void)close(t->listeners[i]);
    }
}

/* Bytes sent on one end come out of the other. */
static void assert_joined(int a, int b)
{
    char x = 'x', y = 0;
    assert_true(a >= 0 && b >= 0);
    assert_int_equal(send(a, &x, 1, MSG_NOSIGNAL), 1);
    while (recv(b, &y, 1, 0) != 1)
        assert_int_equal(errno, EAGAIN);
    assert_int_equal(y, 'x');
}

static void test_everybody_is_joined_with_everybody(void **state)
{
    for (uint32_t n = 2; n <= RIG_RANKS_MAX; n++)
        for (int is_unix = 0; is_unix < 2; is_unix++) {
            struct town t;
            found(&t, n, is_unix);
            rig_each(&t.rig, go, &t);
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(t.result[i], 0);
                assert_joined(t.fabric[i].ring_next, t.fabric[(i + 1) % n].ring_prev);
                for (uint32_t k = 0; k < n; k++)
                    if (k != i)
                        assert_joined(t.fabric[i].mesh[k], t.fabric[k].mesh[i]);
            }
            leave(&t);
        }
}

/* --- shared memory --- */

/* What one side writes is what the other reads, both ways. */
static void assert_shared(struct shm *a, struct shm *b)
{
    for (int way = 0; way < 2; way++) {
        char y[SHM_UNIT];
        size_t n = 0;
        memset(y, 'a' + way, sizeof y);
        assert_int_equal(shm_write(a, y, sizeof y, true), sizeof y);
        (void)shm_publish(a);
        const void *p = shm_peek(b, &n);
        assert_int_equal(n, sizeof y);
        assert_memory_equal(p, y, sizeof y);
        struct shm *other = a;
        a = b;
        b = other;
    }
}

/* Ranks that meet by Unix sockets share memory, each pair its own; others share none; and who wants
 * none is joined all the same. */
static void test_ranks_of_a_host_share_memory(void **state)
{
    for (int is_unix = 0; is_unix < 2; is_unix++)
        for (uint32_t unshared = 0; unshared < 4; unshared++) {
            struct town t;
            found(&t, 4, is_unix);
            t.unshared = unshared == 3 ? UINT32_MAX : unshared;
            rig_each(&t.rig, go, &t);
            for (uint32_t i = 0; i < 4; i++) {
                assert_int_equal(t.result[i], 0);
                for (uint32_t k = 0; k < i; k++) {
                    struct shm *a = &t.fabric[i].memory[k], *b = &t.fabric[k].memory[i];
                    assert_joined(t.fabric[i].mesh[k], t.fabric[k].mesh[i]);
                    if (!is_unix || i == t.unshared || k == t.unshared)
                        assert_true(a->at == NULL && b->at == NULL);
                    else
                        assert_shared(a, b);
                }
            }
            leave(&t);
        }
}

static size_t count_descriptors(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Descriptors that strangers pass with what they say are closed, not kept. */
static void test_descriptors_of_strangers_are_closed(void **state)
{
    struct town t;
    size_t before = count_descriptors();
    int strangers[20];
    found(&t, 2, true);
    for (size_t i = 0; i < MU_COUNT(strangers); i++) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        char noise[64] = {0};
        union {
            char bytes[CMSG_SPACE(2 * sizeof(int))];
            struct cmsghdr align;
        } control = {{0}};
        struct iovec v = {noise, i % 2 ? 5 : sizeof noise};
        struct msghdr m = {.msg_iov = &v,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof control.bytes};
        struct cmsghdr *cm = CMSG_FIRSTHDR(&m);
        *cm = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                               .cmsg_type = SCM_RIGHTS,
                               .cmsg_len = CMSG_LEN(2 * sizeof(int))};
        memset(CMSG_DATA(cm), 0, 2 * sizeof(int)); /* Standard input, twice. */
        size_t n = strlen(t.peers[0].unix_name);
        memcpy(to.sun_path + 1, t.peers[0].unix_name, n);
        strangers[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(strangers[i], (struct sockaddr *)&to,
                                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)),
                         0);
        assert_true(sendmsg(strangers[i], &m, MSG_NOSIGNAL) > 0);
    }
    rig_each(&t.rig, go, &t);
    assert_int_equal(t.result[0], 0);
    assert_shared(&t.fabric[0].memory[1], &t.fabric[1].memory[0]);
    leave(&t);
    for (size_t i = 0; i < MU_COUNT(strangers); i++)
        (void)close(strangers[i]);
    assert_int_equal(count_descriptors(), before);
}

/* --- strangers, and ranks that do not come --- */

/* Strangers on the port, silent and talking ones, more than there are places for: dropped, and
 * nobody else is held up. */
static void test_strangers_are_dropped(void **state)
{
    struct town t;
    int strangers[100];
    found(&t, 3, false);
    for (size_t i = 0; i < MU_COUNT(strangers); i++) {
        static const char noise[64] = "GET / HTTP/1.0\r\n\r\n";
        strangers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const struct mu_addr *to = &t.peers[i % 2].address;
        while (connect(strangers[i], (const struct sockaddr *)&to->ss, to->len) < 0)
            assert_int_equal(errno, EINTR);
        if (i % 3 != 0)
            assert_true(send(strangers[i], noise, i % 3 == 1 ? 5 : sizeof noise, MSG_NOSIGNAL) > 0);
    }
    rig_each(&t.rig, go, &t);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(t.result[i], 0);
    assert_joined(t.fabric[0].mesh[1], t.fabric[1].mesh[0]);
    leave(&t);
    for (size_t i = 0; i < MU_COUNT(strangers); i++) { /* None got the second half of the token. */
        char got[64];
        assert_true(recv(strangers[i], got, sizeof got, 0) <= 0);
        (void)close(strangers[i]);
    }
}

/* A rank that was slow between its connect and its hello, and lost its place to strangers
 * meanwhile, comes again. Here rank 0 is played: it drops the first connection for the mesh and the
 * first for the ring, as one whose table is full does. */
struct dropper {
    struct town t;
    int lost;
};

static void take_after_a_drop(struct dropper *d)
{
    struct town *t = &d->t;
    struct mesh_start s = {.rank = 0,
                           .size = 2,
                           .peers = t->peers,
                           .tcp_listener = t->listeners[0],
                           .unix_listener = -1,
                           .deadline_ns = mu_now_ns() + t->timeout_ns};
    for (d->lost = 0; d->lost < 2; d->lost++) {
        struct pollfd p = {.fd = t->listeners[0], .events = POLLIN};
        if (poll(&p, 1, 10000) != 1)
            return;
        (void)close(accept(t->listeners[0], NULL, NULL));
    }
    memcpy(s.token, t->token[0], sizeof s.token);
    t->result[0] = mesh_connect(&s, &t->fabric[0], &t->cause[0]);
}

static void go_or_drop(void *arg, uint32_t rank)
{
    struct dropper *d = arg;
    if (rank == 0)
        take_after_a_drop(d);
    else
        go(&d->t, rank);
}

static void test_who_lost_its_place_to_strangers_comes_again(void **state)
{
    struct dropper d;
    found(&d.t, 2, false);
    rig_each(&d.t.rig, go_or_drop, &d);
    assert_int_equal(d.lost, 2);
    assert_int_equal(d.t.result[0], 0);
    assert_int_equal(d.t.result[1], 0);
    assert_joined(d.t.fabric[0].mesh[1], d.t.fabric[1].mesh[0]);
    leave(&d.t);
}

/* Strangers take descriptors: where these are short, it is they who go. Rank 1 is a process of its
 * own here. */
static void test_strangers_do_not_use_up_the_descriptors(void **state)
{
    struct town t;
    int strangers[40];
    struct rlimit was;
    struct rlimit few;
    int status = 0;
    int started[2]; /* Closed when we have started: a peer that ends before is a failure. */
    char none;
    assert_int_equal(pipe(started), 0);
    found(&t, 2, false);
    pid_t child = fork();
    if (child == 0) {
        (void)close(started[1]);
        (void)close(t.listeners[0]);
        go(&t, 1);
        (void)!read(started[0], &none, 1);
        _exit(t.result[1] == 0 ? 0 : 1);
    }
    (void)close(started[0]);
    for (size_t i = 0; i < MU_COUNT(strangers); i++) {
        strangers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const struct mu_addr *to = &t.peers[0].address;
        while (connect(strangers[i], (const struct sockaddr *)&to->ss, to->len) < 0)
            assert_int_equal(errno, EINTR);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    few = was;
    few.rlim_cur = (rlim_t)strangers[MU_COUNT(strangers) - 1] + 1 + 3; /* What it needs itself. */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    go(&t, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    (void)close(started[1]);
    if (t.result[0] != 0)
        fail_msg("%s", t.cause[0].text);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    leave(&t);
    for (size_t i = 0; i < MU_COUNT(strangers); i++)
        (void)close(strangers[i]);
}

/* A rank that does not come is named, with its host, by all others, when time is over. */
static void test_absent_rank_is_named(void **state)
{
    struct town t;
    found(&t, 4, false);
    t.absent = 2;
    t.timeout_ns = 50 * MU_NS_PER_MS;
    rig_each(&t.rig, go, &t);
    for (uint32_t i = 0; i < 4; i++) {
        if (i == 2)
            continue;
        assert_int_equal(t.result[i], -ETIMEDOUT);
        assert_int_equal(t.cause[i].peer, 2);
        assert_has(t.cause[i].text, "rank 2 on h2");
    }
    leave(&t);
}

/* Who answers with a wrong token is somebody else on that port: refused, and said so. Both sides
 * may be the first to see it, as each connects to the other; the other one sees the end. */
static void test_wrong_answer_is_refused(void **state)
{
    struct town t;
    found(&t, 2, false);
    t.token[0][MESH_TOKEN_BYTES - 1] = 9; /* Of the half that the one who accepts shows. */
    rig_each(&t.rig, go, &t);
    assert_true(t.result[0] < 0 && t.result[1] < 0);
    uint32_t first = t.result[0] == -EPERM ? 0 : 1;
    assert_int_equal(t.result[first], -EPERM);
    assert_has(t.cause[first].text, "does not know the token");
    leave(&t);
}

/* A peer whose process is gone is named at once, not at the deadline. */
static void test_refused_connection_is_named_at_once(void **state)
{
    struct town t;
    found(&t, 2, false);
    t.absent = 0;
    (void)close(t.listeners[0]);
    t.listeners[0] = -1;
    int64_t begun = mu_now_ns();
    rig_each(&t.rig, go, &t);
    assert_true(mu_now_ns() - begun < 10 * MU_NS_PER_S);
    assert_int_equal(t.result[1], -ECONNREFUSED);
    assert_int_equal(t.cause[1].peer, 0);
    leave(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everybody_is_joined_with_everybody),
        cmocka_unit_test(test_ranks_of_a_host_share_memory),
        cmocka_unit_test(test_descriptors_of_strangers_are_closed),
        cmocka_unit_test(test_strangers_are_dropped),
        cmocka_unit_test(test_who_lost_its_place_to_strangers_comes_again),
        cmocka_unit_test(test_strangers_do_not_use_up_the_descriptors),
        cmocka_unit_test(test_absent_rank_is_named),
        cmocka_unit_test(test_wrong_answer_is_refused),
        cmocka_unit_test(test_refused_connection_is_named_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
