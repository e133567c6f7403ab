/* What a worker tells its agent, from the SDK's call to the agent's ear:
 * worker-sdk/src/progress*.c, fail.c and log.c in a child process, agent/workers/talk.c and
 * errfile.c here. The two meet at the socket alone, so this is also the test that they speak the
 * same language. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/progress.h>

#include "agent/workers/errfile.h"
#include "agent/workers/talk.h"
#include "worker-sdk/src/core/sdk.h"

#define WAIT_MS 20000

/* --- a communicator of two whose peer was asked to stop, or asked with another step --- */

struct muster_comm {
    int64_t peer[4];
    const char *backend;
};

const char *muster_comm_backend(const muster_comm *c)
{
    return c->backend;
}

int muster_comm_all_reduce(muster_comm *c,
                           void *buf,
                           size_t count,
                           enum muster_dtype t,
                           enum muster_op op,
                           muster_ticket *ret,
                           struct muster_error *err)
{
    (void)err;
    int64_t *mine = buf;
    if (count != 4 || t != MUSTER_I64 || op != MUSTER_MAX)
        return -EINVAL;
    for (size_t i = 0; i < count; i++)
        mine[i] = mine[i] > c->peer[i] ? mine[i] : c->peer[i];
    *ret = 1;
    return 0;
}

int muster_comm_wait(muster_comm *c, muster_ticket t, int64_t timeout_ns, struct muster_error *err)
{
    (void)c;
    (void)t;
    (void)timeout_ns;
    (void)err;
    return 0;
}

/* --- a worker in a process of its own --- */

struct child {
    pid_t pid;
    struct talk talk;
    struct talk_said *said;
    int go; /* Close to let it go on. */
};

typedef int body_fn(muster *m, int go);

/* Wait until the test says so. */
static void await(int go)
{
    char byte;
    (void)!read(go, &byte, 1);
}

static void start(struct child *c, body_fn *body)
{
    int go[2];
    assert_int_equal(talk_open(&c->talk), 0);
    assert_int_equal(pipe(go), 0);
    c->said = &c->talk.said;
    c->pid = fork();
    assert_true(c->pid >= 0);
    if (c->pid == 0) {
        muster m = {.env = {.world = 1, .round = 3}, .timeout_ns = MU_NS_PER_S, .agent_fd = -1};
        char text[12];
        (void)close(go[1]);
        (void)close(c->talk.fd);
        (void)snprintf(text, sizeof text, "%d", c->talk.worker_fd);
        (void)setenv("MUSTER_AGENT_FD", text, 1);
        int r = sdk_agent_open(&m, NULL);
        if (r == 0)
            r = body(&m, go[0]);
        sdk_agent_close(&m);
        _exit(r);
    }
    (void)close(go[0]);
    c->go = go[1];
}

/* As start(), and the greeting was heard. */
static void meet(struct child *c, body_fn *body)
{
    enum talk_news news = TALK_UNKNOWN;
    start(c, body);
    struct pollfd p = {.fd = c->talk.fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    assert_int_equal(talk_read(&c->talk, 1, &news), 1);
    assert_int_equal(news, TALK_HELLO);
    assert_true(c->said->hello);
}

static enum talk_news hear(struct child *c)
{
    enum talk_news news = TALK_UNKNOWN;
    struct pollfd p = {.fd = c->talk.fd, .events = POLLIN};
    if (poll(&p, 1, WAIT_MS) != 1)
        fail_msg("the worker says nothing");
    int r = talk_read(&c->talk, 7, &news);
    if (r != 1)
        fail_msg("no packet: %d", r);
    return news;
}

static void go_on(struct child *c)
{
    (void)close(c->go);
    c->go = -1;
}

/* It ends, with 0; then all that it said is there. */
static void end(struct child *c)
{
    int status = 0;
    if (c->go >= 0)
        go_on(c);
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    if (status != 0)
        fail_msg("the worker ended with wait status 0x%x", status);
}

/* --- progress and sections --- */

static int many_steps(muster *m, int go)
{
    for (uint64_t step = 1; step <= 100000; step++)
        muster_progress(m, step);
    await(go);
    return 0;
}

static void test_steps_are_told_at_once_then_seldom_and_the_last_at_the_end(void **state)
{
    struct child c;
    int heard = 1;
    enum talk_news news;
    (void)state;
    meet(&c, many_steps);
    assert_int_equal(hear(&c), TALK_PROGRESS);
    assert_int_equal(c.said->step, 1);
    assert_int_equal(c.said->step_ns, 7);
    end(&c);
    while (talk_read(&c.talk, 8, &news) == 1)
        heard++;
    assert_int_equal(c.said->step, 100000);
    assert_true(heard < 1000); /* Ten a second. */
    talk_close(&c.talk);
}

static int nested(muster *m, int go)
{
    muster_section_begin(m, "load \"data\"\n", 2500 * MU_NS_PER_MS);
    muster_section_begin(m, "inner", -1);
    muster_section_end(m);
    muster_section_end(m);
    muster_section_end(m); /* One too many changes nothing. */
    for (int i = 0; i < 20; i++)
        muster_section_begin(m, "deep", -1);
    for (int i = 0; i < 20; i++)
        muster_section_end(m);
    await(go);
    return 0;
}

static void test_sections_nest(void **state)
{
    struct child c;
    (void)state;
    meet(&c, nested);
    assert_int_equal(hear(&c), TALK_SECTION);
    assert_string_equal(c.said->section, "load \"data\" ");
    assert_int_equal(c.said->section_limit_ns, 2500 * MU_NS_PER_MS);
    assert_int_equal(hear(&c), TALK_SECTION);
    assert_string_equal(c.said->section, "inner");
    assert_int_equal(c.said->section_limit_ns, -1);
    assert_int_equal(hear(&c), TALK_SECTION);
    assert_string_equal(c.said->section, "load \"data\" ");
    assert_int_equal(hear(&c), TALK_SECTION);
    assert_string_equal(c.said->section, "");
    for (int i = 0; i < 16; i++)
        assert_int_equal(hear(&c), TALK_SECTION);
    assert_string_equal(c.said->section, "");
    end(&c);
    talk_close(&c.talk);
}

/* --- an agent that does not listen --- */

static int talkative(muster *m, int go)
{
    (void)go;
    for (int i = 0; i < 20000; i++) {
        muster_section_begin(m, "x", -1);
        muster_section_end(m);
    }
    return 0;
}

static void test_an_agent_that_does_not_read_stops_nobody(void **state)
{
    struct child c;
    (void)state;
    start(&c, talkative);
    end(&c);
    talk_close(&c.talk);
}

static int goes_on_alone(muster *m, int go)
{
    await(go);
    talkative(m, go);
    muster_progress(m, 5);
    if (muster_stop_requested(m))
        return 2;
    return muster_fail(m, "x", NULL) < 0 ? 3 : 0;
}

static void test_an_agent_that_died_is_forgotten(void **state)
{
    struct child c;
    (void)state;
    meet(&c, goes_on_alone);
    talk_close(&c.talk);
    end(&c); /* Nor does a SIGPIPE end it. */
}

static int has_agent(muster *m, int go)
{
    (void)go;
    muster_progress(m, 1);
    return m->agent_fd >= 0 ? 4 : 0;
}

static void run_with(const char *value)
{
    muster m = {.env = {.world = 1}, .agent_fd = -1};
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (value != NULL)
            (void)setenv("MUSTER_AGENT_FD", value, 1);
        _exit(sdk_agent_open(&m, NULL) < 0 ? 1 : has_agent(&m, -1));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status != 0)
        fail_msg("MUSTER_AGENT_FD=%s: 0x%x", value, status);
}

static void test_a_number_that_is_no_socket_of_ours_is_left_alone(void **state)
{
    char path[] = "/tmp/sdk_progress.XXXXXX";
    char text[12];
    int pair[2];
    struct stat st;
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    run_with(NULL);
    run_with("");
    run_with("0");
    run_with("77"); /* Not open. */
    run_with("three");
    (void)snprintf(text, sizeof text, "%d", fd);
    run_with(text);
    assert_true(fstat(fd, &st) == 0 && st.st_size == 0);
    (void)snprintf(text, sizeof text, "%d", pair[0]);
    run_with(text);
    (void)unlink(path);
    (void)close(fd);
    (void)close(pair[0]);
    (void)close(pair[1]);
}

/* --- stopping --- */

static int asks_until_told(muster *m, int go)
{
    bool stop = true;
    struct muster_error err;
    if (muster_should_stop(m, NULL, 1, &stop, &err) < 0 || stop)
        return 2;
    await(go);
    return muster_should_stop(m, NULL, 2, &stop, &err) == 0 && stop ? 0 : 3;
}

static void test_an_agent_may_ask_to_stop(void **state)
{
    struct child c;
    (void)state;
    meet(&c, asks_until_told);
    assert_false(c.said->looks);
    assert_int_equal(hear(&c), TALK_LOOKS);
    assert_true(c.said->looks);
    talk_ask_stop(&c.talk);
    end(&c);
    talk_close(&c.talk);
}

static int asks_step_by_step(muster *m, int go)
{
    bool stop = true;
    struct muster_error err;
    muster_progress(m, 4);
    if (muster_stop_requested(m))
        return 2;
    await(go);
    for (uint64_t step = 5; step < 9; step++) {
        muster_progress(m, step);
        if (muster_stop_requested(m) != (step >= 7))
            return 3;
        if (muster_should_stop(m, NULL, step, &stop, &err) < 0 || stop != (step >= 7))
            return 4;
    }
    return 0;
}

static void test_a_step_may_be_named_after_which_to_stop(void **state)
{
    struct child c;
    enum talk_news news = TALK_UNKNOWN;
    (void)state;
    meet(&c, asks_step_by_step);
    assert_int_equal(hear(&c), TALK_PROGRESS);
    assert_int_equal(hear(&c), TALK_LOOKS);
    talk_ask_stop_after(&c.talk, 7);
    talk_ask_stop_after(&c.talk, 3); /* The first one stays. */
    go_on(&c);
    assert_false(c.said->halts);
    while (news != TALK_HALTS)
        news = hear(&c);
    assert_true(c.said->halts);
    end(&c);
    talk_close(&c.talk);
}

static void test_all_ranks_get_the_same_answer(void **state)
{
    muster m = {.env = {.world = 2}, .timeout_ns = MU_NS_PER_S, .agent_fd = -1};
    muster_comm c = {.peer = {0, 7, -7}, .backend = "tcp"};
    struct muster_error err = {0};
    bool stop = true;
    (void)state;
    assert_int_equal(muster_should_stop(&m, &c, 7, &stop, &err), 0);
    assert_false(stop);
    c.peer[0] = 1; /* The other rank was asked. */
    assert_int_equal(muster_should_stop(&m, &c, 7, &stop, &err), 0);
    assert_true(stop);
    c.peer[0] = 0;
    c.peer[3] = 1; /* It was told to stop after this step, and the word has not come here yet. */
    assert_int_equal(muster_should_stop(&m, &c, 7, &stop, &err), 0);
    assert_true(stop);
    c.peer[3] = 0;
    assert_int_equal(muster_should_stop(&m, &c, 9, &stop, &err), -EPROTO);
    assert_has(err.text, "steps 7 to 9");
    muster_request_stop(&m);
    c.peer[1] = 8;
    c.peer[2] = -8;
    stop = false;
    assert_int_equal(muster_should_stop(&m, &c, 8, &stop, &err), 0);
    assert_true(stop);
    assert_int_equal(muster_should_stop(&m, NULL, 8, &stop, &err), -EINVAL);
    c.backend = "nccl";
    assert_int_equal(muster_should_stop(&m, &c, 8, &stop, &err), -EINVAL);
    assert_has(err.text, "\"tcp\"");
}

/* --- failing --- */

static char error_file[100];

static int fails(muster *m, int go)
{
    struct muster_error err;
    (void)go;
    (void)setenv("TORCHELASTIC_ERROR_FILE", error_file, 1);
    muster_progress(m, 12);
    muster_section_begin(m, "load data", 2 * MU_NS_PER_S);
    if (muster_fail(m, "no \"such\" file: d\xc3\xa4ta.bin", &err) < 0)
        return 2;
    return muster_fail(m, "a consequence", &err) < 0 ? 3 : 0;
}

static void test_a_failure_is_written_and_told_with_its_section(void **state)
{
    struct child c;
    struct plan_error e = {0};
    (void)state;
    char dir[] = "/tmp/sdk_progress.XXXXXX";
    assert_non_null(mkdtemp(dir));
    (void)snprintf(error_file, sizeof error_file, "%s/error.json", dir);
    start(&c, fails);
    end(&c);
    while (c.said->failure[0] == '\0')
        (void)hear(&c);
    assert_has(c.said->failure, "no \"such\" file: d\xc3\xa4ta.bin (in section 'load data' for ");
    assert_has(c.said->failure, "s, limit 2.0 s; after step 12)");
    errfile_read(error_file, &e); /* As the agent reads torch's own. */
    assert_true(e.found);
    assert_string_equal(e.message, c.said->failure);
    assert_true(e.unix_s > 1600000000);
    plan_error_fini(&e);
    talk_close(&c.talk);
    assert_int_equal(unlink(error_file), 0);
    assert_int_equal(rmdir(dir), 0); /* Nothing was left aside. */
}

static int cannot_write(muster *m, int go)
{
    struct muster_error err = {0};
    (void)go;
    (void)setenv("TORCHELASTIC_ERROR_FILE", "/proc/none/error.json", 1);
    int r = muster_fail(m, "x", &err);
    return r < 0 && strstr(err.text, "/proc/none/error.json") != NULL ? 0 : 2;
}

static void test_an_error_file_that_cannot_be_written_is_named_and_the_agent_told(void **state)
{
    struct child c;
    (void)state;
    meet(&c, cannot_write);
    assert_int_equal(hear(&c), TALK_FAIL);
    assert_string_equal(c.said->failure, "x");
    end(&c);
    talk_close(&c.talk);
}

static int long_words(muster *m, int go)
{
    char text[4000];
    (void)go;
    for (size_t i = 0; i + 1 < sizeof text; i += 2)
        memcpy(text + i, "\xc3\xa4", 2);
    text[sizeof text - 2] = '\0';
    muster_section_begin(m, text, -1);
    return muster_fail(m, text, NULL) < 0 ? 2 : 0;
}

static void test_long_words_are_cut_between_characters(void **state)
{
    struct child c;
    (void)state;
    meet(&c, long_words);
    assert_int_equal(hear(&c), TALK_SECTION);
    assert_true(strlen(c.said->section) < sizeof c.said->section);
    assert_int_equal(hear(&c), TALK_FAIL);
    size_t n = strlen(c.said->failure);
    assert_true(n >= 490 && n % 2 == 0);
    assert_memory_equal(c.said->failure + n - 2, "\xc3\xa4", 2);
    end(&c);
    talk_close(&c.talk);
}

/* --- what an agent takes --- */

static int parse(const char *text, struct talk_said *said)
{
    enum talk_news news = TALK_UNKNOWN;
    int r = talk_parse(mu_str_of(text, strlen(text)), 1, said, &news);
    return r < 0 ? r : (int)news;
}

static void test_strangers_packets_are_refused_and_change_nothing(void **state)
{
    struct talk_said said = {0};
    struct talk_said none = {0};
    (void)state;
    assert_int_equal(parse("", &said), -EPROTO);
    assert_int_equal(parse("[]", &said), -EPROTO);
    assert_int_equal(parse("{}", &said), -EPROTO);
    assert_int_equal(parse("{\"type\":3}", &said), -EPROTO);
    assert_int_equal(parse("{\"type\":\"progress\"}", &said), -EPROTO);
    assert_int_equal(parse("{\"type\":\"progress\",\"step\":\"3\"}", &said), -EPROTO);
    assert_int_equal(parse("{\"type\":\"progress\",\"step\":-3}", &said), -EPROTO);
    assert_int_equal(parse("{\"type\":\"section\",\"name\":null}", &said), -EPROTO);
    assert_int_equal(parse("{\"type\":\"fail\",\"message\":[]}", &said), -EPROTO);
    assert_int_equal(parse("{\"type\":\"of tomorrow\",\"x\":1}", &said), TALK_UNKNOWN);
    assert_memory_equal(&said, &none, sizeof said);
    assert_int_equal(parse("{\"type\":\"progress\",\"step\":1e300,\"new\":1}", &said),
                     TALK_PROGRESS);
    assert_int_equal(said.step, INT64_C(1) << 53);
    assert_int_equal(
        parse("{\"type\":\"section\",\"name\":\"a\\u001bb\",\"limit_ms\":1e300}", &said),
        TALK_SECTION);
    assert_string_equal(said.section, "a b");
    assert_int_equal(said.section_limit_ns, -1);
}

static void test_a_rank_can_be_blamed_and_no_more(void **state)
{
    (void)state;
    struct talk_said said = {.blame = -1};
    assert_int_equal(parse("{\"type\":\"blame\",\"rank\":3}", &said), TALK_BLAME);
    assert_int_equal(said.blame, 3);
    assert_int_equal(parse("{\"type\":\"blame\"}", &said), TALK_BLAME);
    assert_int_equal(said.blame, -1);
    assert_int_equal(parse("{\"type\":\"blame\",\"rank\":3e9}", &said), TALK_BLAME);
    assert_int_equal(said.blame, -1);
}

static void test_a_stranger_loses_its_socket(void **state)
{
    struct talk t;
    enum talk_news news;
    char big[5000];
    (void)state;
    memset(big, ' ', sizeof big);
    assert_int_equal(talk_open(&t), 0);
    assert_int_equal(talk_read(&t, 1, &news), 0);
    assert_int_equal(write(t.worker_fd, big, sizeof big), (ssize_t)sizeof big);
    assert_int_equal(talk_read(&t, 1, &news), -EPROTO);
    assert_int_equal(t.fd, -1);
    assert_int_equal(talk_read(&t, 1, &news), 0);
    talk_ask_stop(&t);
    talk_close(&t);
}

/* --- log --- */

static void test_a_line_is_rank_0s_or_has_its_rank_in_front(void **state)
{
    muster m = {.env = {.world = 4, .rank = 3}};
    char got[200] = "";
    int out[2];
    (void)state;
    assert_int_equal(pipe(out), 0);
    (void)fflush(stderr);
    int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(out[1], STDERR_FILENO) >= 0);
    muster_log(&m, false, "not %s", "shown");
    muster_log(&m, true, "loss %.2f", 0.5);
    m.env.rank = 0;
    muster_log(&m, false, "epoch %d\n", 1);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    (void)close(saved);
    (void)close(out[1]);
    assert_true(read(out[0], got, sizeof got - 1) > 0);
    (void)close(out[0]);
    assert_string_equal(got, "[rank 3] loss 0.50\nepoch 1\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_are_told_at_once_then_seldom_and_the_last_at_the_end),
        cmocka_unit_test(test_sections_nest),
        cmocka_unit_test(test_an_agent_that_does_not_read_stops_nobody),
        cmocka_unit_test(test_an_agent_that_died_is_forgotten),
        cmocka_unit_test(test_a_number_that_is_no_socket_of_ours_is_left_alone),
        cmocka_unit_test(test_an_agent_may_ask_to_stop),
        cmocka_unit_test(test_a_failure_is_written_and_told_with_its_section),
        cmocka_unit_test(test_an_error_file_that_cannot_be_written_is_named_and_the_agent_told),
        cmocka_unit_test(test_long_words_are_cut_between_characters),
        cmocka_unit_test(test_strangers_packets_are_refused_and_change_nothing),
        cmocka_unit_test(test_a_rank_can_be_blamed_and_no_more),
        cmocka_unit_test(test_a_stranger_loses_its_socket),
        cmocka_unit_test(test_a_line_is_rank_0s_or_has_its_rank_in_front),
        /* Last: it uses this process's own line, of which there is one. */
        cmocka_unit_test(test_a_step_may_be_named_after_which_to_stop),
        cmocka_unit_test(test_all_ranks_get_the_same_answer),
    };
    (void)unsetenv("TORCHELASTIC_ERROR_FILE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
