/* The promise: the store's client is never out of step, sends nothing twice that must not be, ends
 * every call in time and says what it waited for; and the store that rank 0 serves outlives the
 * others' last request. Against our own served store, and against scripted servers that break off
 * at the moment a test wants. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <muster/store.h>

#include "base/addr.h"
#include "worker-sdk/src/store/store_serve.h"
#include "worker-sdk/src/store/store_wire.h"

#define MS INT64_C(1000000)
#define LONG (20000 * MS)

static struct muster_error err;

/* --- rigs --- */

struct rig {
    struct sdk_serve *serve;
    uint16_t port;
    muster_store *a;
    muster_store *b;
};

static int set_up(void **state)
{
    static struct rig rig;
    rig = (struct rig){0};
    *state = &rig;
    if (sdk_serve_start("127.0.0.1", 0, &rig.serve, &rig.port, &err) < 0 ||
        muster_store_open("127.0.0.1", rig.port, "p/", LONG, &rig.a, &err) < 0 ||
        muster_store_open("localhost", rig.port, "p/", LONG, &rig.b, &err) < 0) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    struct rig *rig = *state;
    muster_store_close(rig->a);
    muster_store_close(rig->b);
    sdk_serve_stop(rig->serve);
    return 0;
}

static void holds(muster_store *s, const char *key, const char *value, size_t n)
{
    struct muster_bytes got = {0};
    int r = muster_store_get(s, key, &got, &err);
    if (r < 0)
        fail_msg("get %s: %s", key, err.text);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.p, value, n);
    assert_int_equal(got.p[n], '\0');
    muster_bytes_free(&got);
}

/* A server in a thread: greets each connection, reads one request of `request_bytes`, answers with
 * `answer`, and closes. */
struct script {
    const char *answer; /* NULL: close without one. */
    size_t answer_bytes;
    size_t request_bytes;
};

struct scripted {
    int listener;
    uint16_t port;
    const struct script *scripts;
    size_t count;
    char last[256]; /* The last request. */
    size_t last_bytes;
    atomic_size_t served;
    pthread_t thread;
};

static void read_all(int fd, char *p, size_t n)
{
    while (n > 0) {
        ssize_t m = recv(fd, p, n, 0);
        if (m <= 0)
            return;
        p += m;
        n -= (size_t)m;
    }
}

static void *play(void *arg)
{
    struct scripted *s = arg;
    for (size_t i = 0; i < s->count; i++) {
        char hello[10];
        struct pollfd p = {.fd = s->listener, .events = POLLIN};
        if (poll(&p, 1, 10000) != 1)
            return NULL;
        int fd = accept(s->listener, NULL, NULL);
        read_all(fd, hello, sizeof hello);
        (void)!send(fd, hello + 6, 4, MSG_NOSIGNAL);
        const struct script *t = &s->scripts[i];
        read_all(fd, s->last, t->request_bytes);
        s->last_bytes = t->request_bytes;
        s->served++;
        if (t->answer != NULL)
            (void)!send(fd, t->answer, t->answer_bytes, MSG_NOSIGNAL);
        close(fd);
    }
    return NULL;
}

static void scripted_start(struct scripted *s, const struct script *scripts, size_t count)
{
    struct mu_err why;
    *s = (struct scripted){.scripts = scripts, .count = count};
    s->listener = mu_listen("127.0.0.1", 0, 8, &s->port, &why);
    assert_true(s->listener >= 0);
    assert_int_equal(pthread_create(&s->thread, NULL, play, s), 0);
}

static void scripted_end(struct scripted *s)
{
    pthread_join(s->thread, NULL);
    close(s->listener);
}

/* --- commands --- */

static void test_values_come_back_byte_for_byte(void **state)
{
    struct rig *rig = *state;
    assert_int_equal(muster_store_set(rig->a, "k", "a\0b", 3, &err), 0);
    holds(rig->b, "k", "a\0b", 3);
    assert_int_equal(muster_store_set(rig->a, "empty", NULL, 0, &err), 0);
    holds(rig->b, "empty", "", 0);
    assert_int_equal(muster_store_append(rig->a, "k", "cd", 2, &err), 0);
    holds(rig->b, "k", "a\0bcd", 5);
}

static void test_large_values_pass(void **state)
{
    struct rig *rig = *state;
    size_t n = (8u << 20) - 1;
    char *big = malloc(n);
    assert_non_null(big);
    for (size_t i = 0; i < n; i++)
        big[i] = (char)(i * 2654435761u >> 11);
    assert_int_equal(muster_store_set(rig->a, "big", big, n, &err), 0);
    holds(rig->b, "big", big, n);
    free(big);
}

/* The key on the wire is "/", the prefix, the key: what torch sends for "p/k". */
static void test_keys_travel_as_torchs(void **state)
{
    struct rig *rig = *state;
    muster_store *plain = NULL;
    assert_int_equal(muster_store_open("127.0.0.1", rig->port, NULL, LONG, &plain, &err), 0);
    assert_int_equal(muster_store_set(rig->a, "k", "v", 1, &err), 0);
    holds(plain, "p/k", "v", 1);
    struct muster_bytes *keys = NULL;
    size_t n = 0;
    assert_int_equal(muster_store_set(plain, "elsewhere", "v", 1, &err), 0);
    assert_int_equal(muster_store_list_keys(rig->a, &keys, &n, &err), 0);
    assert_int_equal(n, 1);
    assert_string_equal(keys[0].p, "k");
    muster_store_free_keys(keys, n);
    int64_t count = 0;
    assert_int_equal(muster_store_num_keys(rig->a, &count, &err), 0);
    assert_int_equal(count, 2);
    muster_store_close(plain);
}

static void test_numbers_and_comparisons(void **state)
{
    struct rig *rig = *state;
    int64_t v = 0;
    struct muster_bytes got = {0};
    assert_int_equal(muster_store_add(rig->a, "n", 5, &v, &err), 0);
    assert_int_equal(muster_store_add(rig->b, "n", -7, &v, &err), 0);
    assert_int_equal(v, -2);
    assert_int_equal(muster_store_add(rig->b, "n", 1, NULL, &err), 0);
    holds(rig->a, "n", "-1", 2);
    assert_int_equal(muster_store_compare_set(rig->a, "c", "", 0, "one", 3, &got, &err), 0);
    assert_string_equal(got.p, "one");
    muster_bytes_free(&got);
    assert_int_equal(muster_store_compare_set(rig->b, "c", "two", 3, "three", 5, &got, &err), 0);
    assert_string_equal(got.p, "one");
    muster_bytes_free(&got);
    bool was = false;
    assert_int_equal(muster_store_delete(rig->b, "c", &was, &err), 0);
    assert_true(was);
    assert_int_equal(muster_store_delete(rig->b, "c", &was, &err), 0);
    assert_false(was);
    assert_int_equal(muster_store_delete(rig->b, "c", NULL, &err), 0);
}

static void test_many_at_once(void **state)
{
    enum {
        COUNT = 9000
    }; /* More than one request's worth. */
    struct rig *rig = *state;
    static char text[COUNT][16];
    static const char *keys[COUNT];
    static struct muster_bytes in[COUNT];
    static struct muster_bytes out[COUNT];
    bool all = false;
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(text[i], sizeof text[i], "key-%zu", i);
        keys[i] = text[i];
        in[i] = (struct muster_bytes){text[i], strlen(text[i])};
    }
    assert_int_equal(muster_store_multi_set(rig->a, keys, in, COUNT - 1, &err), 0);
    assert_int_equal(muster_store_check(rig->b, keys, COUNT, &all, &err), 0);
    assert_false(all);
    assert_int_equal(muster_store_set(rig->a, keys[COUNT - 1], text[COUNT - 1], 8, &err), 0);
    assert_int_equal(muster_store_check(rig->b, keys, COUNT, &all, &err), 0);
    assert_true(all);
    assert_int_equal(muster_store_wait(rig->b, keys, COUNT, LONG, &err), 0);
    assert_int_equal(muster_store_multi_get(rig->b, keys, COUNT, out, &err), 0);
    for (size_t i = 0; i < COUNT; i++) {
        assert_string_equal(out[i].p, text[i]);
        muster_bytes_free(&out[i]);
    }
    assert_int_equal(muster_store_check(rig->b, NULL, 0, &all, &err), 0);
    assert_true(all);
}

static void test_queues(void **state)
{
    struct rig *rig = *state;
    struct muster_bytes got = {0};
    int64_t n = 0;
    assert_int_equal(muster_store_queue_pop(rig->a, "q", false, &got, &err), -EAGAIN);
    assert_has(err.text, "queue_pop 'q': the queue is empty");
    assert_int_equal(muster_store_queue_push(rig->a, "q", "one", 3, &err), 0);
    assert_int_equal(muster_store_queue_push(rig->a, "q", "two", 3, &err), 0);
    assert_int_equal(muster_store_queue_len(rig->b, "q", &n, &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(muster_store_queue_pop(rig->b, "q", true, &got, &err), 0);
    assert_string_equal(got.p, "one");
    muster_bytes_free(&got);
    assert_int_equal(muster_store_queue_pop(rig->b, "q", false, &got, &err), 0);
    muster_bytes_free(&got);
    muster_store_set_timeout(rig->b, 30 * MS);
    assert_int_equal(muster_store_queue_pop(rig->b, "q", true, &got, &err), -ETIMEDOUT);
}

static void test_keys_too_long_are_refused_here(void **state)
{
    struct rig *rig = *state;
    char key[8300];
    memset(key, 'k', sizeof key - 1);
    key[8189] = '\0'; /* "/p/" and this: 8192. */
    assert_int_equal(muster_store_set(rig->a, key, "v", 1, &err), 0);
    key[8189] = 'k';
    key[8190] = '\0';
    assert_int_equal(muster_store_set(rig->a, key, "v", 1, &err), -ENAMETOOLONG);
    assert_has(err.text, "a key of 8193 bytes");
    assert_int_equal(muster_store_set(rig->a, NULL, "v", 1, &err), -EINVAL);
}

/* --- time --- */

static void test_a_wait_that_times_out_names_the_key_and_leaves_no_trace(void **state)
{
    struct rig *rig = *state;
    static const char *const keys[] = {"there", "late", "later"};
    assert_int_equal(muster_store_set(rig->a, "there", "1", 1, &err), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(muster_store_wait(rig->a, keys, 3, i * MS / 4, &err), -ETIMEDOUT);
        assert_has(err.text, "2 of 3 keys did not come within");
        assert_has(err.text, "the first is 'late'");
        /* In step: the wake of a wait that was given up answers nothing else. */
        assert_int_equal(muster_store_set(rig->b, "late", "1", 1, &err), 0);
        assert_int_equal(muster_store_delete(rig->b, "late", NULL, &err), 0);
        holds(rig->a, "there", "1", 1);
    }
    assert_int_equal(muster_store_wait(rig->a, keys + 1, 1, 0, &err), -ETIMEDOUT);
    assert_has(err.text, "store wait: 'late' did not come within");
    muster_store_set_timeout(rig->a, 10 * MS);
    struct muster_bytes got = {0};
    assert_int_equal(muster_store_get(rig->a, "late", &got, &err), -ETIMEDOUT);
    assert_has(err.text, "store get: 'late' did not come within");
    assert_null(got.p);
}

struct setter {
    muster_store *s;
    const char *key;
    int rounds;
};

static void *set_many(void *arg)
{
    struct setter *t = arg;
    for (int i = 0; i < t->rounds; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s-%d", t->key, i);
        if (muster_store_set(t->s, key, key, strlen(key), NULL) < 0)
            return NULL;
    }
    return t;
}

/* Waits that end in the very moment in which their key comes: whoever wins, the next answer is the
 * right one. */
static void test_a_wake_that_crosses_the_time_out_keeps_the_step(void **state)
{
    enum {
        ROUNDS = 300
    };
    struct rig *rig = *state;
    struct setter t = {rig->b, "race", ROUNDS};
    pthread_t thread;
    void *ok = NULL;
    assert_int_equal(pthread_create(&thread, NULL, set_many, &t), 0);
    for (int i = 0; i < ROUNDS; i++) {
        char key[32];
        const char *keys[] = {key};
        snprintf(key, sizeof key, "race-%d", i);
        int r = muster_store_wait(rig->a, keys, 1, (i % 7) * MS / 50, &err);
        assert_true(r == 0 || r == -ETIMEDOUT);
        holds(rig->a, key, key, strlen(key)); /* Waits as long as it takes. */
    }
    pthread_join(thread, &ok);
    assert_non_null(ok);
}

/* Accepts and never says a word. */
static void test_a_silent_server_ends_every_call_in_time(void **state)
{
    struct mu_err why;
    uint16_t port = 0;
    muster_store *s = NULL;
    int listener = mu_listen("127.0.0.1", 0, 8, &port, &why);
    int64_t began = sdk_now_ns();
    assert_int_equal(muster_store_open("127.0.0.1", port, "", 100 * MS, &s, &err), -ETIMEDOUT);
    assert_has(err.text, "no store at 127.0.0.1 port");
    assert_has(err.text, "took the connection and says nothing");
    assert_true(sdk_now_ns() - began < 5000 * MS);
    close(listener);
    assert_int_equal(muster_store_open("127.0.0.1", port, "", 50 * MS, &s, &err), -ETIMEDOUT);
    assert_has(err.text, "Connection refused");
    assert_null(s);
}

/* Says `words` to everybody who comes, NULL: nothing, and closes; until told to end. */
struct stranger {
    int listener;
    const char *words;
    atomic_bool end;
};

static void *be_a_stranger(void *arg)
{
    struct stranger *s = arg;
    while (!s->end) {
        char hello[10];
        struct pollfd p = {.fd = s->listener, .events = POLLIN};
        if (poll(&p, 1, 10) != 1)
            continue;
        int fd = accept(s->listener, NULL, NULL);
        read_all(fd, hello, sizeof hello);
        if (s->words != NULL)
            (void)!send(fd, s->words, strlen(s->words), MSG_NOSIGNAL);
        close(fd);
    }
    return NULL;
}

/* The last attempt is cut short by the deadline: its time-out is not the reason. */
static void test_a_port_that_serves_something_else_is_told_by_what_it_does(void **state)
{
    static const struct {
        const char *words, *said;
        int code;
    } rows[] = {
        {"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the store's protocol", -EPROTO},
        {"SSH-2.0-OpenSSH_9.2\r\n", "does not speak the store's protocol", -EPROTO},
        {NULL, "closes the connection at once", -ETIMEDOUT},
        {"no", "closes the connection at once", -ETIMEDOUT},
    };
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct mu_err why;
        struct stranger s = {.words = rows[i].words};
        uint16_t port = 0;
        pthread_t thread;
        muster_store *store = NULL;
        s.listener = mu_listen("127.0.0.1", 0, 8, &port, &why);
        assert_true(s.listener >= 0);
        assert_int_equal(pthread_create(&thread, NULL, be_a_stranger, &s), 0);
        int r = muster_store_open("127.0.0.1", port, "", 300 * MS, &store, &err);
        s.end = true;
        pthread_join(thread, NULL);
        close(s.listener);
        if (r != rows[i].code || strstr(err.text, rows[i].said) == NULL)
            fail_msg("row %zu: %d %s", i, r, err.text);
    }
}

static void test_wrong_addresses_get_a_sentence(void **state)
{
    muster_store *s = NULL;
    assert_int_equal(muster_store_open("", 1, "", MS, &s, &err), -EINVAL);
    assert_int_equal(muster_store_open(NULL, 1, "", MS, &s, &err), -EINVAL);
    assert_int_equal(muster_store_open("127.0.0.1", 0, "", MS, &s, &err), -EINVAL);
    assert_has(err.text, "a host and a port");
}

/* --- connections that are lost --- */

#define ADD_BYTES (1 + 8 + 2 + 8)
#define SET_BYTES (1 + 8 + 2 + 8 + 1 + 5) /* With the PING behind it. */
#define COMPARE_SET_BYTES (1 + 9 + 8 + 8)
#define WAIT_BYTES (1 + 8 + 8 + 2)

static void test_an_add_is_never_sent_twice(void **state)
{
    static const struct script scripts[] = {{NULL, 0, ADD_BYTES},
                                            {"\7\0\0\0\0\0\0\0", 8, ADD_BYTES}};
    struct scripted srv;
    muster_store *s = NULL;
    int64_t v = 0;
    scripted_start(&srv, scripts, 2);
    assert_int_equal(muster_store_open("127.0.0.1", srv.port, "", LONG, &s, &err), 0);
    assert_int_equal(muster_store_add(s, "n", 1, &v, &err), -ECONNRESET);
    assert_has(err.text, "store add 'n': the connection to the store at 127.0.0.1 port");
    assert_has(err.text, "may or may not have been done");
    assert_int_equal(srv.served, 1);
    assert_int_equal(muster_store_add(s, "n", 1, &v, &err), 0); /* The next call connects again. */
    assert_int_equal(v, 7);
    muster_store_close(s);
    scripted_end(&srv);
    assert_int_equal(srv.served, 2);
}

static void test_a_wait_is_sent_again_once(void **state)
{
    static const struct script scripts[] = {
        {NULL, 0, WAIT_BYTES}, {"\0", 1, WAIT_BYTES}, {NULL, 0, WAIT_BYTES}, {NULL, 0, WAIT_BYTES}};
    static const char *const keys[] = {"k"};
    struct scripted srv;
    muster_store *s = NULL;
    scripted_start(&srv, scripts, 4);
    assert_int_equal(muster_store_open("127.0.0.1", srv.port, "", LONG, &s, &err), 0);
    assert_int_equal(muster_store_wait(s, keys, 1, LONG, &err), 0);
    assert_int_equal(srv.served, 2);
    assert_int_equal(srv.last[0], 6);
    muster_store_close(s);
    assert_int_equal(muster_store_open("127.0.0.1", srv.port, "", LONG, &s, &err), 0);
    assert_int_equal(muster_store_wait(s, keys, 1, LONG, &err), -ECONNRESET);
    muster_store_close(s);
    scripted_end(&srv);
    assert_int_equal(srv.served, 4);
}

static void test_nonsense_is_no_answer(void **state)
{
    static const struct script scripts[] = {
        {"\377\377\377\377\377\377\377\377", 8, COMPARE_SET_BYTES},
        {"\5", 1, WAIT_BYTES},
        {"\0\0\0\0", 4, SET_BYTES}};
    static const char *const keys[] = {"k"};
    struct scripted srv;
    muster_store *s = NULL;
    struct muster_bytes got = {0};
    scripted_start(&srv, scripts, 3);
    assert_int_equal(muster_store_open("127.0.0.1", srv.port, "", LONG, &s, &err), 0);
    /* An announced length of 2^64 - 1. */
    assert_int_equal(muster_store_compare_set(s, "", "", 0, "", 0, &got, &err), -EPROTO);
    assert_has(err.text, "none that a store gives");
    assert_int_equal(muster_store_wait(s, keys, 1, LONG, &err), -EPROTO);
    /* Another PING's answer. */
    assert_int_equal(muster_store_set(s, "k", "v", 1, &err), -EPROTO);
    muster_store_close(s);
    scripted_end(&srv);
}

/* A server that was started anew on its port: calls go on, its keys are gone. */
static void test_a_restarted_server_is_found_again(void **state)
{
    struct rig *rig = *state;
    bool there = true;
    int64_t v = 0;
    static const char *const keys[] = {"k"};
    assert_int_equal(muster_store_set(rig->a, "k", "v", 1, &err), 0);
    sdk_serve_stop(rig->serve);
    rig->serve = NULL;
    assert_int_equal(sdk_serve_start("127.0.0.1", rig->port, &rig->serve, &rig->port, &err), 0);
    assert_int_equal(muster_store_check(rig->a, keys, 1, &there, &err), 0);
    assert_false(there);
    /* b's connection is long dead: seen before the request goes out, so it is sent once, and whole.
     */
    assert_int_equal(muster_store_add(rig->b, "n", 3, &v, &err), 0);
    assert_int_equal(v, 3);
}

static void test_a_value_over_the_servers_limit_says_so(void **state)
{
    struct rig *rig = *state;
    size_t n = (8u << 20) + 1;
    char *big = calloc(n, 1);
    assert_non_null(big);
    int r = muster_store_set(rig->a, "big", big, n, &err);
    assert_true(r == -ECONNRESET || r == -EPIPE);
    assert_has(err.text, "Is the value over the server's limit?");
    free(big);
    assert_int_equal(muster_store_ping(rig->a, &err), 0);
}

/* --- barriers --- */

static void test_a_barrier_names_the_missing_and_goes_on(void **state)
{
    struct rig *rig = *state;
    assert_int_equal(muster_store_barrier(rig->a, "b", 0, 4, 20 * MS, &err), -ETIMEDOUT);
    assert_has(err.text, "barrier 'b': 3 of 4 ranks did not come within");
    assert_has(err.text, ": 1, 2, 3");
    assert_int_equal(muster_store_barrier(rig->b, "b", 2, 4, 20 * MS, &err), -ETIMEDOUT);
    assert_has(err.text, "2 of 4 ranks");
    assert_has(err.text, ": 1, 3");
    assert_int_equal(muster_store_barrier(rig->b, "b", 3, 4, 20 * MS, &err), -ETIMEDOUT);
    /* Rank 0 has given up; the last to come sees that all are there. */
    assert_int_equal(muster_store_barrier(rig->b, "b", 1, 4, 20 * MS, &err), 0);
    assert_int_equal(muster_store_barrier(rig->a, "b", 0, 4, 0, &err), 0);
    assert_int_equal(muster_store_barrier(rig->b, "b", 2, 4, LONG, &err), 0);
}

static void test_a_barrier_of_many_shows_the_first_missing(void **state)
{
    struct rig *rig = *state;
    assert_int_equal(muster_store_barrier(rig->a, "b", 0, 5000, 20 * MS, &err), -ETIMEDOUT);
    assert_has(err.text, "4999 of 5000");
    assert_has(err.text, "1, 2, 3, 4, 5, 6, 7, 8 and 4991 more");
    assert_int_equal(muster_store_barrier(rig->a, "b", 5, 5, 0, &err), -EINVAL);
}

static void *cross(void *arg)
{
    struct rig *rig = arg;
    for (int i = 0; i < 50; i++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", i);
        if (muster_store_barrier(rig->b, name, 1, 2, LONG, NULL) < 0)
            return NULL;
    }
    return arg;
}

static void test_ranks_cross_barriers_together(void **state)
{
    struct rig *rig = *state;
    pthread_t thread;
    void *ok = NULL;
    assert_int_equal(pthread_create(&thread, NULL, cross, rig), 0);
    for (int i = 0; i < 50; i++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", i);
        assert_int_equal(muster_store_barrier(rig->a, name, 0, 2, LONG, &err), 0);
    }
    pthread_join(thread, &ok);
    assert_non_null(ok);
}

/* --- serving --- */

static void test_no_store_is_an_error_and_no_crash(void **state)
{
    (void)state;
    struct muster_bytes got;
    const char *key = "k";
    int64_t n = 0;
    bool there = false;
    assert_int_equal(muster_store_set(NULL, "k", "v", 1, &err), -ENOTCONN);
    assert_non_null(strstr(err.text, "there is no store"));
    assert_int_equal(muster_store_get(NULL, "k", &got, &err), -ENOTCONN);
    assert_int_equal(muster_store_add(NULL, "k", 1, &n, &err), -ENOTCONN);
    assert_int_equal(muster_store_append(NULL, "k", "v", 1, &err), -ENOTCONN);
    assert_int_equal(muster_store_compare_set(NULL, "k", "", 0, "v", 1, &got, &err), -ENOTCONN);
    assert_int_equal(muster_store_check(NULL, &key, 1, &there, &err), -ENOTCONN);
    assert_int_equal(muster_store_wait(NULL, &key, 1, 1000, &err), -ENOTCONN);
    assert_int_equal(muster_store_delete(NULL, "k", &there, &err), -ENOTCONN);
    assert_int_equal(muster_store_num_keys(NULL, &n, &err), -ENOTCONN);
    assert_int_equal(muster_store_multi_get(NULL, &key, 1, &got, &err), -ENOTCONN);
    assert_int_equal(muster_store_queue_push(NULL, "k", "v", 1, &err), -ENOTCONN);
    assert_int_equal(muster_store_queue_pop(NULL, "k", false, &got, &err), -ENOTCONN);
    assert_int_equal(muster_store_queue_len(NULL, "k", &n, &err), -ENOTCONN);
    assert_int_equal(muster_store_ping(NULL, &err), -ENOTCONN);
    assert_int_equal(muster_store_barrier(NULL, "b", 0, 1, 1000, &err), 0); /* Of one. */
    assert_int_equal(muster_store_barrier(NULL, "b", 0, 2, 1000, &err), -ENOTCONN);
    muster_store_set_timeout(NULL, 1);
}

static void test_a_taken_port_gets_a_sentence(void **state)
{
    struct rig *rig = *state;
    struct sdk_serve *second = NULL;
    uint16_t port = 0;
    assert_int_equal(sdk_serve_start("127.0.0.1", rig->port, &second, &port, &err), -EADDRINUSE);
    assert_has(err.text, "serve the job's store: 127.0.0.1:");
    assert_has(err.text, "is taken");
}

/* "p/gone/1" is all that is missing. */
static void test_the_store_is_served_until_the_last_goodbye(void **state)
{
    struct rig *rig = *state;
    assert_int_equal(sdk_serve_drain(rig->serve, "p/", 2, sdk_deadline_ns(30 * MS), &err),
                     -ETIMEDOUT);
    assert_has(err.text, "rank 1 did not say goodbye");
    assert_int_equal(muster_store_set(rig->a, "gone/1", "", 0, &err), 0);
    assert_int_equal(sdk_serve_drain(rig->serve, "p/", 2, sdk_deadline_ns(LONG), &err), 0);
}

/* Rank 1 was here and ended without a goodbye; rank 2 said it. */
static void test_ranks_that_died_are_not_waited_for(void **state)
{
    struct rig *rig = *state;
    assert_int_equal(muster_store_set(rig->a, "here/1", "", 0, &err), 0);
    assert_int_equal(muster_store_set(rig->a, "gone/2", "", 0, &err), 0);
    muster_store_close(rig->a);
    muster_store_close(rig->b);
    rig->a = rig->b = NULL;
    int64_t began = sdk_now_ns();
    assert_int_equal(sdk_serve_drain(rig->serve, "p/", 3, sdk_deadline_ns(LONG), &err), 0);
    assert_true(sdk_now_ns() - began < LONG / 2);
}

/* One that was never here may still be on its way. */
static void test_ranks_that_did_not_come_yet_are_waited_for(void **state)
{
    struct rig *rig = *state;
    muster_store_close(rig->a);
    muster_store_close(rig->b);
    rig->a = rig->b = NULL;
    assert_int_equal(sdk_serve_drain(rig->serve, "p/", 2, sdk_deadline_ns(700 * MS), &err),
                     -ETIMEDOUT);
}

#define WITH_RIG(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_RIG(test_values_come_back_byte_for_byte),
        WITH_RIG(test_large_values_pass),
        WITH_RIG(test_keys_travel_as_torchs),
        WITH_RIG(test_numbers_and_comparisons),
        WITH_RIG(test_many_at_once),
        WITH_RIG(test_queues),
        WITH_RIG(test_keys_too_long_are_refused_here),
        WITH_RIG(test_a_wait_that_times_out_names_the_key_and_leaves_no_trace),
        WITH_RIG(test_a_wake_that_crosses_the_time_out_keeps_the_step),
        cmocka_unit_test(test_a_silent_server_ends_every_call_in_time),
        cmocka_unit_test(test_a_port_that_serves_something_else_is_told_by_what_it_does),
        cmocka_unit_test(test_wrong_addresses_get_a_sentence),
        cmocka_unit_test(test_no_store_is_an_error_and_no_crash),
        cmocka_unit_test(test_an_add_is_never_sent_twice),
        cmocka_unit_test(test_a_wait_is_sent_again_once),
        cmocka_unit_test(test_nonsense_is_no_answer),
        WITH_RIG(test_a_restarted_server_is_found_again),
        WITH_RIG(test_a_value_over_the_servers_limit_says_so),
        WITH_RIG(test_a_barrier_names_the_missing_and_goes_on),
        WITH_RIG(test_a_barrier_of_many_shows_the_first_missing),
        WITH_RIG(test_ranks_cross_barriers_together),
        WITH_RIG(test_a_taken_port_gets_a_sentence),
        WITH_RIG(test_the_store_is_served_until_the_last_goodbye),
        WITH_RIG(test_ranks_that_died_are_not_waited_for),
        WITH_RIG(test_ranks_that_did_not_come_yet_are_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
