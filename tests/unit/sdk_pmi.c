/* The promise: one text of rank 0 reaches all through mpiexec, and whatever mpiexec says instead
 * becomes a sentence. mpiexec's answers lie in the socket before the rank asks. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "worker-sdk/src/core/pmi.h"

#define SECOND INT64_C(1000000000)
#define HELLO "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
#define SPACE "cmd=my_kvsname kvsname=kvs_77_0\n"
#define PUT "cmd=put_result rc=0 msg=success\n"
#define BARRIER "cmd=barrier_out\n"
#define GET "cmd=get_result rc=0 msg=success value=127.0.0.1:4000\n"

/* What the rank said ends up in `said`. */
static int share(const char *answers,
                 const char *value,
                 char *said,
                 size_t bytes,
                 char *ret,
                 struct muster_error *err)
{
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(write(fd[1], answers, strlen(answers)), (ssize_t)strlen(answers));
    assert_int_equal(shutdown(fd[1], SHUT_WR), 0);
    int r = sdk_pmi_share(fd[0], "where", value, sdk_deadline_ns(5 * SECOND), ret, 64, err);
    close(fd[0]);
    size_t n = 0;
    ssize_t m = 0;
    while (n < bytes - 1 && (m = read(fd[1], said + n, bytes - 1 - n)) > 0)
        n += (size_t)m;
    said[n] = '\0';
    close(fd[1]);
    return r;
}

static void test_rank_0_puts_and_gets(void **state)
{
    char said[512];
    char ret[64] = "";
    struct muster_error err = {0};
    assert_int_equal(
        share(HELLO SPACE PUT BARRIER GET, "127.0.0.1:4000", said, sizeof said, ret, &err), 0);
    assert_string_equal(ret, "127.0.0.1:4000");
    assert_string_equal(said, "cmd=init pmi_version=1 pmi_subversion=1\n"
                              "cmd=get_my_kvsname\n"
                              "cmd=put kvsname=kvs_77_0 key=where value=127.0.0.1:4000\n"
                              "cmd=barrier_in\n"
                              "cmd=get kvsname=kvs_77_0 key=where\n");
}

static void test_other_ranks_only_get(void **state)
{
    char said[512];
    char ret[64] = "";
    assert_int_equal(share(HELLO SPACE BARRIER GET, NULL, said, sizeof said, ret, NULL), 0);
    assert_string_equal(ret, "127.0.0.1:4000");
    assert_null(strstr(said, "cmd=put"));
}

static void test_wrong_answers_become_sentences(void **state)
{
    static const struct {
        const char *answers;
        int code;
        const char *sentence;
    } rows[] = {
        {"", -ECONNRESET, "mpiexec ended while we waited for init"},
        {"cmd=response_to_init pmi_version=2 rc=-1\n", -EPROTO, "mpiexec refuses init"},
        {"HTTP/1.1 400\n", -EPROTO,
         "response_to_init was due for init, this came: \"HTTP/1.1 400\""},
        {HELLO "cmd=my_kvsname\n", -EPROTO, "does not name its key space"},
        {HELLO SPACE "cmd=put_result rc=-1 msg=duplicate\n", -EPROTO, "mpiexec refuses put"},
        {HELLO SPACE PUT, -ECONNRESET, "mpiexec ended while we waited for all other ranks"},
        {HELLO SPACE PUT BARRIER "cmd=get_result rc=-1 msg=no\n", -EPROTO, "mpiexec refuses get"},
        {HELLO SPACE PUT BARRIER "cmd=get_result rc=0\n", -EPROTO, "rank 0 put no value"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char said[512];
        char ret[64] = "";
        struct muster_error err = {0};
        int r = share(rows[i].answers, "v", said, sizeof said, ret, &err);
        if (r != rows[i].code || strstr(err.text, rows[i].sentence) == NULL)
            fail_msg("row %zu: %d \"%s\"", i, r, err.text);
    }
}

static void test_a_line_without_an_end_is_refused(void **state)
{
    char line[2000];
    char said[512];
    char ret[64];
    struct muster_error err = {0};
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    assert_int_equal(share(line, NULL, said, sizeof said, ret, &err), -EPROTO);
    assert_has(err.text, "over 1024 bytes");
}

/* A barrier that nobody else reaches ends at its deadline. */
static void test_silence_ends_at_the_deadline(void **state)
{
    int fd[2];
    char ret[64];
    struct muster_error err = {0};
    static const char answers[] = HELLO SPACE;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(write(fd[1], answers, sizeof answers - 1), (ssize_t)sizeof answers - 1);
    int r = sdk_pmi_share(fd[0], "k", NULL, sdk_deadline_ns(SECOND / 20), ret, sizeof ret, &err);
    assert_int_equal(r, -ETIMEDOUT);
    assert_has(err.text, "time is over waiting for all other ranks");
    close(fd[0]);
    close(fd[1]);
}

/* mpiexec hangs up after the goodbye: a second word is an error, not a signal. */
static void test_after_the_goodbye_there_is_a_sentence(void **state)
{
    int fd[2];
    struct muster_error err = {0};
    static const char answer[] = "cmd=finalize_ack rc=0\n";
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(write(fd[1], answer, sizeof answer - 1), (ssize_t)sizeof answer - 1);
    assert_int_equal(sdk_pmi_goodbye(fd[0], sdk_deadline_ns(SECOND), &err), 0);
    close(fd[1]);
    assert_int_equal(sdk_pmi_goodbye(fd[0], sdk_deadline_ns(SECOND), &err), -EPIPE);
    assert_has(err.text, "opens one handle in its life");
    close(fd[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_0_puts_and_gets),
        cmocka_unit_test(test_other_ranks_only_get),
        cmocka_unit_test(test_wrong_answers_become_sentences),
        cmocka_unit_test(test_a_line_without_an_end_is_refused),
        cmocka_unit_test(test_silence_ends_at_the_deadline),
        cmocka_unit_test(test_after_the_goodbye_there_is_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
