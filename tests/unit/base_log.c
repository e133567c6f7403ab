/* Log lines: one event, one line, the same fields as text, for the journal and as JSON. Lines are
 * read back from a file that stands in for stderr. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/unit.h"

#include <cjson/cJSON.h>

#include "base/log.h"
#include "base/manager.h"

/* Log one line through the real descriptor and give it back. */
static char *line_of(const char *program,
                     enum mu_log_format format,
                     enum mu_log_level level,
                     const char *event,
                     const char *pairs)
{
    static char line[4096];
    FILE *file = tmpfile();
    assert_non_null(file);
    int kept = dup(STDERR_FILENO);
    assert_true(kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    mu_log_setup(program, MU_INFO, format);
    errno = EXDEV;
    mu_log(level, event, "%s", pairs);
    int error = errno;
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    (void)close(kept);
    assert_int_equal(error, EXDEV); /* Logging must not change what the caller will print. */
    rewind(file);
    size_t n = fread(line, 1, sizeof line - 1, file);
    line[n] = '\0';
    (void)fclose(file);
    return line;
}

static void test_text_has_time_program_level_event_and_pairs(void **state)
{
    (void)state;
    (void)unsetenv("JOURNAL_STREAM");
    const char *line = line_of("rdzv-server", MU_LOG_TEXT, MU_WARN, "round.start", "job=7 round=3");
    assert_has(line, "Z rdzv-server warning: round.start job=7 round=3\n");
    assert_int_equal(line[4], '-');
    assert_int_equal(line[10], 'T');
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
}

static void test_a_line_stays_one_line(void **state)
{
    (void)state;
    const char *line = line_of("p", MU_LOG_TEXT, MU_INFO, "e", "\na=1\r\nb=2\n");
    assert_has(line, "p info: e  a=1  b=2 \n");
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
}

/* Stands in for the journal's socket: keeps what would be sent, or refuses it. */
int __wrap_mu_journal_send(const struct mu_buf *fields);
static char journal_got[4096];
static int journal_answer;

int __wrap_mu_journal_send(const struct mu_buf *fields)
{
    (void)snprintf(journal_got, sizeof journal_got, "%.*s", (int)fields->n, fields->p);
    return journal_answer;
}

/* As line_of(), with $JOURNAL_STREAM naming the file that stands in for stderr, as systemd does. */
static char *line_in_journal(enum mu_log_level level, const char *event, const char *pairs)
{
    static char line[4096];
    char stream[64];
    struct stat st;
    FILE *file = tmpfile();
    assert_non_null(file);
    int kept = dup(STDERR_FILENO);
    assert_true(kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0 &&
                fstat(STDERR_FILENO, &st) == 0);
    (void)snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    assert_int_equal(setenv("JOURNAL_STREAM", stream, 1), 0);
    mu_log_setup("p", MU_INFO, MU_LOG_TEXT);
    mu_log(level, event, "%s", pairs);
    assert_int_equal(unsetenv("JOURNAL_STREAM"), 0);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    (void)close(kept);
    rewind(file);
    line[fread(line, 1, sizeof line - 1, file)] = '\0';
    (void)fclose(file);
    return line;
}

static void test_the_journal_gets_the_fields(void **state)
{
    (void)state;
    journal_answer = 0;
    assert_string_equal(
        line_in_journal(MU_WARN, "node.lost", "job=train node=2 why=\"no answer for 3 s\""), "");
    assert_string_equal(
        journal_got,
        "MESSAGE=node.lost job=train node=2 why=\"no answer for 3 s\"\nPRIORITY=4\n"
        "SYSLOG_IDENTIFIER=p\nMUSTER_EVENT=node.lost\nMUSTER_JOB=train\nMUSTER_NODE=2\n"
        "MUSTER_WHY=no answer for 3 s\n");
    (void)line_in_journal(MU_INFO, "e", "a whole sentence");
    assert_string_equal(
        journal_got,
        "MESSAGE=e a whole sentence\nPRIORITY=6\nSYSLOG_IDENTIFIER=p\nMUSTER_EVENT=e\n");
}

static void test_without_the_journals_socket_priority_replaces_the_time(void **state)
{
    (void)state;
    journal_answer = -ENOENT;
    assert_string_equal(line_in_journal(MU_ERROR, "a.b", "k=v"), "<3>a.b k=v\n");
    assert_string_equal(line_in_journal(MU_INFO, "a.b", "k=v"), "<6>a.b k=v\n");
}

static void test_a_stream_that_is_not_ours_changes_nothing(void **state)
{
    (void)state;
    assert_int_equal(setenv("JOURNAL_STREAM", "8:1234", 1),
                     0); /* Inherited from a service that started us. */
    assert_has(line_of("p", MU_LOG_TEXT, MU_ERROR, "a.b", "k=v"), "Z p error: a.b k=v\n");
    assert_int_equal(unsetenv("JOURNAL_STREAM"), 0);
}

static void test_below_the_level_nothing_is_written(void **state)
{
    (void)state;
    assert_string_equal(line_of("p", MU_LOG_TEXT, MU_DEBUG, "a.b", "k=v"), "");
    assert_true(mu_log_on(MU_INFO));
    assert_false(mu_log_on(MU_DEBUG));
}

static const char *field(const cJSON *root, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(root, name);
    return cJSON_IsString(v) ? v->valuestring : "(none)";
}

static void test_json_has_the_same_fields(void **state)
{
    (void)state;
    const char *line = line_of("agent", MU_LOG_JSON, MU_INFO, "worker.exit",
                               "rank=3 host=\"n 2\" empty= text=\"a\\x0ab\" last=1");
    cJSON *root = cJSON_Parse(line);
    assert_non_null(root);
    assert_string_equal(field(root, "program"), "agent");
    assert_string_equal(field(root, "level"), "info");
    assert_string_equal(field(root, "event"), "worker.exit");
    assert_string_equal(field(root, "rank"), "3");
    assert_string_equal(field(root, "host"), "n 2");
    assert_string_equal(field(root, "empty"), "");
    assert_string_equal(field(root, "text"), "a\\x0ab");
    assert_string_equal(field(root, "last"), "1");
    assert_int_equal(strlen(field(root, "time")), 24);
    cJSON_Delete(root);
}

/* The format's conversions tell, never what a text looks like. */
static void test_json_has_numbers_where_the_format_has(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    char line[1024];
    int kept = dup(STDERR_FILENO);
    assert_true(file != NULL && kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    mu_log_setup("p", MU_INFO, MU_LOG_JSON);
    mu_log(MU_INFO, "e",
           "job=%s code=%d bytes=%lu host=%s pad=%04u quoted=\"%d\" list=%d, n=%u%s%s v=%s", "0012",
           -3, 18000000000UL, "7", 12U, 5, 6, 4U, "", " more=1", "9 code2=8");
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    (void)close(kept);
    rewind(file);
    line[fread(line, 1, sizeof line - 1, file)] = '\0';
    (void)fclose(file);
    assert_has(line, "\"job\":\"0012\",\"code\":-3,\"bytes\":18000000000,\"host\":\"7\","
                     "\"pad\":\"0012\",\"quoted\":\"5\",\"list\":\"6,\",\"n\":4,"
                     "\"more\":\"1\",\"v\":\"9\",\"code2\":\"8\"}");
}

/* Odd texts must still be one JSON object on one line. */
static void test_json_is_json_whatever_the_text(void **state)
{
    (void)state;
    static const char *const texts[] = {"",          " ",      "a sentence with no pairs",
                                        "a=1 rest",  "a",      "=x",
                                        "a=\"open",  "a=\"\\", "a=\"x\"y b=2",
                                        "a=1  b=2 ", "a=b=c",  "\xff=\xff"};
    char big[2000];
    memset(big, 'k', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    for (size_t i = 0; i <= MU_COUNT(texts); i++) {
        const char *text = i < MU_COUNT(texts) ? texts[i] : big;
        const char *line = line_of("p", MU_LOG_JSON, MU_INFO, "e", text);
        cJSON *root = cJSON_Parse(line);
        if (root == NULL)
            fail_msg("not JSON for \"%s\": %s", text, line);
        assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
        cJSON_Delete(root);
    }
}

static void test_levels_have_pythons_names_too(void **state)
{
    (void)state;
    enum mu_log_level l = MU_ERROR;
    assert_int_equal(mu_log_level_parse("INFO", &l), 0);
    assert_int_equal(l, MU_INFO);
    assert_int_equal(mu_log_level_parse("Warning", &l), 0);
    assert_int_equal(l, MU_WARN);
    assert_int_equal(mu_log_level_parse("CRITICAL", &l), 0);
    assert_int_equal(l, MU_ERROR);
    assert_int_equal(mu_log_level_parse("debug", &l), 0);
    assert_int_equal(l, MU_DEBUG);
    assert_int_equal(mu_log_level_parse("", &l), -EINVAL);
    assert_int_equal(mu_log_level_parse("loud", &l), -EINVAL);
    assert_int_equal(l, MU_DEBUG);
}

static void test_a_storm_is_cut_and_counted(void **state)
{
    (void)state;
    struct mu_log_limit limit = {0};
    const int64_t second = INT64_C(1000000000);
    uint32_t left_out = 99;
    uint32_t written = 0;
    for (int i = 0; i < 1000; i++)
        written += mu_log_allowed(&limit, second + i, 5, &left_out);
    assert_int_equal(written, 5);
    assert_int_equal(left_out, 0);
    assert_true(mu_log_allowed(&limit, 2 * second, 5, &left_out));
    assert_int_equal(left_out, 995);
    assert_true(mu_log_allowed(&limit, 2 * second, 5, &left_out));
    assert_int_equal(left_out, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_has_time_program_level_event_and_pairs),
        cmocka_unit_test(test_a_line_stays_one_line),
        cmocka_unit_test(test_the_journal_gets_the_fields),
        cmocka_unit_test(test_without_the_journals_socket_priority_replaces_the_time),
        cmocka_unit_test(test_a_stream_that_is_not_ours_changes_nothing),
        cmocka_unit_test(test_below_the_level_nothing_is_written),
        cmocka_unit_test(test_json_has_the_same_fields),
        cmocka_unit_test(test_json_has_numbers_where_the_format_has),
        cmocka_unit_test(test_json_is_json_whatever_the_text),
        cmocka_unit_test(test_levels_have_pythons_names_too),
        cmocka_unit_test(test_a_storm_is_cut_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
