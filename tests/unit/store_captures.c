/* Conversations of real PyTorch clients and servers (tests/data/captures) replayed against the
 * core: what the recorded clients sent is fed, and the answers must be the recorded ones, to the
 * byte. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "tests/unit/store_rig.h"

#define FOLDER MUSTER_SOURCE_DIR "/tests/data/captures"
#define DIFFERENCE_MAX 256

/* Where ours answers otherwise, on purpose; the test fails if one of them matches after all. */
static const struct {
    const char *file;
    const char *reason;
} deliberate[] = {
    {"torch213-libuv-compare_set_spurious_wake",
     "a quirk: nothing was created, so nobody is woken"},
    {"torch213-libuv-raw_no_validate", "a quirk: a wrong first command hangs there, ends here"},
    {"torch213-libuv-raw_wrong_magic", "a quirk: a wrong magic hangs there, ends here"},
    {"torch213-legacy-raw_get_missing", "GET of a missing key is empty, as of the default server"},
    {"torch213-legacy-raw_multi_get_missing", "the same of MULTI_GET"},
    {"torch213-legacy-compare_set_wakes",
     "COMPARE_SET that creates wakes, as of the default server"},
};

/* One replay. `difference` is "" as long as all is as recorded. */
struct replay {
    struct rig *rig;
    struct mu_buf got[26]; /* By connection: answers not yet compared. */
    char difference[DIFFERENCE_MAX];
};

static void
differs(struct replay *r, int message, int conn, const char *what, const struct mu_buf *got)
{
    char hex[81] = "";
    for (size_t i = 0; i < got->n && i < 40; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)got->p[i]);
    if (r->difference[0] == '\0')
        snprintf(r->difference, sizeof r->difference, "message %d, connection %c: %s; got '%s'",
                 message, 'A' + conn, what, hex);
}

static const char *text_of(const cJSON *m, const char *field)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, field));
    return s == NULL ? "" : s;
}

static void unhex(const char *hex, struct mu_buf *ret)
{
    for (; hex[0] != '\0'; hex += 2) {
        char pair[3] = {hex[0], hex[1], '\0'};
        char byte = (char)strtoul(pair, NULL, 16);
        assert_int_equal(mu_buf_add(ret, &byte, 1), 0);
    }
}

static bool in_answer(const char *p, size_t n, const char *key, size_t key_bytes)
{
    return memmem(p, n, key, key_bytes) != NULL;
}

/* LIST_KEYS: the same count, the same size, and each recorded key is there. */
static bool same_keys(const struct mu_buf *got, const struct mu_buf *want)
{
    if (got->n < want->n || memcmp(got->p, want->p, 8) != 0)
        return false;
    for (size_t at = 8; at < want->n;) {
        size_t n = 8 + (unsigned char)want->p[at];
        if (!in_answer(got->p + 8, want->n - 8, want->p + at, n))
            return false;
        at += n;
    }
    return true;
}

static void client_message(struct replay *r, const cJSON *m, int conn)
{
    const char *event = text_of(m, "event");
    if (strcmp(event, "connect") == 0) {
        rig_connect(r->rig, conn);
    } else if (strcmp(event, "close") == 0) {
        rig_close(r->rig, conn);
    } else {
        struct mu_buf bytes = {.mem = mu_mem_default()};
        unhex(text_of(m, "hex"), &bytes);
        (void)rig_feed(r->rig, conn, bytes.p, bytes.n); /* What came of it, the answers tell. */
        mu_buf_fini(&bytes);
    }
}

static void server_message(struct replay *r, const cJSON *m, int conn, int index)
{
    const char *event = text_of(m, "event");
    struct mu_buf *got = &r->got[conn];
    rig_take_output(r->rig, conn, got);
    bool open = store_client_verdict(r->rig->client[conn]) == STORE_OK;
    if (strcmp(event, "silence") == 0) {
        if (got->n > 0 || !open)
            differs(r, index, conn, "silence was recorded", got);
        return;
    }
    if (strcmp(event, "close") == 0) {
        if (got->n > 0 || open)
            differs(r, index, conn, "a close was recorded", got);
        return;
    }
    struct mu_buf want = {.mem = mu_mem_default()};
    unhex(text_of(m, "hex"), &want);
    bool unordered = cJSON_GetObjectItemCaseSensitive(m, "unordered") != NULL;
    if (unordered ? !same_keys(got, &want) : got->n < want.n || memcmp(got->p, want.p, want.n) != 0)
        differs(r, index, conn, text_of(m, "hex"), got);
    else
        mu_buf_consume(got, want.n);
    mu_buf_fini(&want);
}

/* Nothing may have been said beyond what was recorded. */
static void check_rest(struct replay *r, int index)
{
    for (int i = 0; i < (int)MU_COUNT(r->got); i++) {
        if (r->rig->client[i] != NULL) {
            rig_take_output(r->rig, i, &r->got[i]);
            if (store_client_verdict(r->rig->client[i]) != STORE_OK && r->difference[0] == '\0')
                differs(r, index, i, "it was left open", &r->got[i]);
        }
        if (r->got[i].n > 0)
            differs(r, index, i, "nothing more was recorded", &r->got[i]);
        mu_buf_fini(&r->got[i]);
    }
}

static void replay(const cJSON *doc, enum rig_feeding feeding, char *ret_difference)
{
    struct store_limits limits = store_limits_default;
    limits.value_bytes_max = 8 << 20; /* That server's: one capture asks for it. */
    struct replay r = {.rig = rig_new(&limits, feeding, 1)};
    const cJSON *m = NULL;
    int index = 0;
    for (size_t i = 0; i < MU_COUNT(r.got); i++)
        mu_buf_init(&r.got[i], mu_mem_default());
    cJSON_ArrayForEach(m, cJSON_GetObjectItemCaseSensitive(doc, "messages"))
    {
        const char *dir = text_of(m, "dir");
        int conn = text_of(m, "conn")[0] - 'A';
        if (r.difference[0] != '\0')
            break;
        if (strcmp(dir, "c2s") == 0)
            client_message(&r, m, conn);
        else if (strcmp(dir, "s2c") == 0)
            server_message(&r, m, conn, index);
        index++;
    }
    check_rest(&r, index);
    rig_free(r.rig);
    memcpy(ret_difference, r.difference, sizeof r.difference);
}

static cJSON *load(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, FOLDER "/%s", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    struct mu_buf b = {.mem = mu_mem_default()};
    char part[4096];
    for (size_t n = 0; (n = fread(part, 1, sizeof part, f)) > 0;)
        assert_int_equal(mu_buf_add(&b, part, n), 0);
    (void)fclose(f); /* It was only read. */
    cJSON *doc = cJSON_ParseWithLength(b.p, b.n);
    mu_buf_fini(&b);
    assert_non_null(doc);
    return doc;
}

static const char *reason_for(const char *name)
{
    for (size_t i = 0; i < MU_COUNT(deliberate); i++)
        if (strncmp(name, deliberate[i].file, strlen(deliberate[i].file)) == 0)
            return deliberate[i].reason;
    return NULL;
}

/* Returns how many things went wrong. */
static int replay_file(const char *name, enum rig_feeding feeding, int *required)
{
    char difference[DIFFERENCE_MAX];
    cJSON *doc = load(name);
    const char *reason = reason_for(name);
    bool must = strcmp(text_of(doc, "status"), "required") == 0;
    replay(doc, feeding, difference);
    cJSON_Delete(doc);
    *required += must;
    if (must && reason != NULL) {
        print_error("%s is required and cannot be a deliberate difference\n", name);
        return 1;
    }
    if (reason == NULL && difference[0] != '\0') {
        print_error("%s: %s\n", name, difference);
        return 1;
    }
    if (reason != NULL && difference[0] == '\0') {
        print_error("%s matches, though it should not: %s\n", name, reason);
        return 1;
    }
    return 0;
}

static void test_captures_give_the_recorded_answers(void **state)
{
    enum rig_feeding feeding = *(enum rig_feeding *)*state;
    DIR *dir = opendir(FOLDER);
    const struct dirent *e = NULL;
    int files = 0;
    int required = 0;
    int wrong = 0;
    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL) {
        if (strstr(e->d_name, ".json") == NULL)
            continue;
        files++;
        wrong += replay_file(e->d_name, feeding, &required);
    }
    (void)closedir(dir); /* It was only read. */
    assert_int_equal(wrong, 0);
    assert_int_equal(files, 103);
    assert_int_equal(required, 41);
}

int main(void)
{
    static enum rig_feeding feedings[] = {RIG_WHOLE, RIG_BYTES, RIG_RANDOM};
    const struct CMUnitTest tests[] = {
        {"captures (whole)", test_captures_give_the_recorded_answers, NULL, NULL, &feedings[0]},
        {"captures (by the byte)", test_captures_give_the_recorded_answers, NULL, NULL,
         &feedings[1]},
        {"captures (random pieces)", test_captures_give_the_recorded_answers, NULL, NULL,
         &feedings[2]},
    };
    return cmocka_run_group_tests_name("store captures", tests, NULL, NULL);
}
