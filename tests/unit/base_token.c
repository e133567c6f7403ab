/* base/token.h and base/proof.h: what is a token's file, and what proves it. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/proof.h"
#include "base/token.h"

static char folder[64];
static char path[96];

static int make_folder(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/muster-token-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(path, sizeof path, "%s/token", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static void write_file(const char *text, size_t n, mode_t mode)
{
    (void)unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(write(fd, text, n), (ssize_t)n);
    (void)close(fd);
}

#define DIGITS "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

static void test_what_is_made_can_be_read_and_is_new_each_time(void **state)
{
    struct mu_token a;
    struct mu_token b;
    struct mu_err err = {0};
    struct stat st;
    (void)state;
    (void)unlink(path);
    assert_int_equal(mu_token_make(path, &err), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, 65);
    assert_int_equal(mu_token_read(path, &a, &err), 0);
    assert_int_equal(mu_token_make(path, &err), -EEXIST);
    (void)unlink(path);
    assert_int_equal(mu_token_make(path, &err), 0);
    assert_int_equal(mu_token_read(path, &b, &err), 0);
    assert_string_not_equal(a.text, b.text);
}

static void test_a_file_is_a_token_or_it_is_refused(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        mode_t mode;
        int want;
    } cases[] = {
        {DIGITS "\n", 65, 0600, 0},       {DIGITS, 64, 0400, 0},
        {DIGITS "\n", 65, 0640, -EPERM},  {DIGITS "\n", 65, 0604, -EPERM},
        {DIGITS "\n", 65, 0610, -EPERM},  {DIGITS "\n\n", 66, 0600, -EINVAL},
        {DIGITS "0", 65, 0600, -EINVAL},  {DIGITS "\n", 63, 0600, -EINVAL},
        {"", 0, 0600, -EINVAL},           {" " DIGITS, 65, 0600, -EINVAL},
        {DIGITS "\0", 65, 0600, -EINVAL}, {"g" DIGITS, 64, 0600, -EINVAL},
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(cases); i++) {
        struct mu_token t = {"untouched"};
        struct mu_err err = {0};
        write_file(cases[i].text, cases[i].n, cases[i].mode);
        assert_int_equal(mu_token_read(path, &t, &err), cases[i].want);
        if (cases[i].want == 0)
            assert_string_equal(t.text,
                                "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");
        else
            assert_true(err.msg[0] != '\0' && strstr(err.msg, "0011") == NULL);
    }
}

static void test_daemons_take_the_named_file_then_the_credential_then_none(void **state)
{
    struct mu_token t;
    struct mu_err err = {0};
    char credential[96];
    (void)state;
    (void)snprintf(credential, sizeof credential, "%s/muster-token", folder);
    (void)unlink(path);
    assert_int_equal(mu_token_read_daemon(NULL, NULL, &t, &err), 0);
    assert_false(mu_token_is_set(&t));
    assert_int_equal(mu_token_read_daemon(NULL, folder, &t, &err), 0);
    assert_false(mu_token_is_set(&t));
    write_file("another credential", 18, 0400);
    assert_int_equal(mu_token_read_daemon(NULL, folder, &t, &err), 0);
    assert_false(mu_token_is_set(&t));
    write_file(DIGITS "\n", 65, 0440);
    assert_int_equal(rename(path, credential), 0);
    assert_int_equal(mu_token_read_daemon(NULL, folder, &t, &err), 0);
    assert_true(mu_token_is_set(&t));
    assert_int_equal(mu_token_read_daemon(credential, folder, &t, &err), 0);
    assert_int_equal(mu_token_read_daemon(credential, NULL, &t, &err), -EPERM);
    assert_int_equal(mu_token_read_daemon(path, folder, &t, &err), -ENOENT);
    assert_false(mu_token_is_set(&t));
    assert_int_equal(chmod(credential, 0444), 0);
    assert_int_equal(mu_token_read_daemon(NULL, folder, &t, &err), -EPERM);
    assert_int_equal(unlink(credential), 0);
}

static void test_places_are_those_of_daemons_and_of_people(void **state)
{
    struct mu_err err = {0};
    char place[96];
    char credential[96];
    (void)state;
    (void)snprintf(credential, sizeof credential, "%s/muster-token", folder);
    assert_int_equal(mu_token_place_daemon(NULL, NULL, place, sizeof place, &err), 0);
    assert_int_equal(mu_token_place_daemon(NULL, "relative", place, sizeof place, &err), 0);
    assert_int_equal(mu_token_place_daemon(NULL, folder, place, sizeof place, &err), 0);
    write_file("", 0, 0600);
    assert_int_equal(rename(path, credential), 0);
    assert_int_equal(mu_token_place_daemon(NULL, folder, place, sizeof place, &err), 1);
    assert_string_equal(place, credential);
    /* What was named is that, also where it is missing or nothing. */
    assert_int_equal(mu_token_place_daemon("t", folder, place, sizeof place, &err), 1);
    assert_string_equal(place, "t");
    assert_int_equal(mu_token_place_daemon("", folder, place, sizeof place, &err), 1);
    assert_string_equal(place, "");
    assert_int_equal(mu_token_place_daemon("four", NULL, place, 4, &err), -ENAMETOOLONG);
    assert_has(err.msg, "--token-file: longer than 3 bytes");
    assert_int_equal(mu_token_place_daemon(NULL, folder, place, 8, &err), -ENAMETOOLONG);
    assert_has(err.msg, "the credential muster-token: longer than 7 bytes");
    assert_int_equal(unlink(credential), 0);

    mu_token_place_own("/c", "/h", place, sizeof place);
    assert_string_equal(place, "/c/muster/token");
    mu_token_place_own("", "/h", place, sizeof place);
    assert_string_equal(place, "/h/.config/muster/token");
    mu_token_place_own("c", "h", place, sizeof place);
    assert_string_equal(place, "");
    mu_token_place_own(NULL, "/h", place, sizeof "/h/.config/muster/token" - 1);
    assert_string_equal(place, "");
}

static void test_a_token_is_compared_whole(void **state)
{
    struct mu_token t = {"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"};
    struct mu_token none = {""};
    char other[65];
    (void)state;
    assert_true(mu_token_is(&t, DIGITS, 64));
    assert_false(mu_token_is(&t, DIGITS, 63));
    assert_false(mu_token_is(&t, DIGITS "0", 65));
    assert_false(mu_token_is(&none, "", 0));
    for (size_t i = 0; i < 64; i++) {
        memcpy(other, DIGITS, sizeof other);
        other[i] = other[i] == '7' ? '6' : '7';
        assert_false(mu_token_is(&t, other, 64));
    }
}

/* Made with Python's hmac, from the sentence in docs/protocol.md. */
static void test_a_proof_is_of_one_side_and_both_nonces(void **state)
{
    struct mu_token t = {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};
    struct mu_prover p;
    struct mu_err err = {0};
    char proof[MU_PROOF_TEXT];
    char s[MU_NONCE_TEXT];
    char a[MU_NONCE_TEXT];
    (void)state;
    memset(s, '1', sizeof s - 1);
    memset(a, '2', sizeof a - 1);
    s[sizeof s - 1] = a[sizeof a - 1] = '\0';
    assert_int_equal(mu_prover_init(&p, &t, MUSTER_CRYPTO_MODULE, &err), 0);
    assert_int_equal(mu_proof(&p, MU_PROOF_OF_AGENT, s, a, proof, &err), 0);
    assert_string_equal(proof, "6b6686013055c2f0ccaac590e20f53faf40e49abad8765097f922a3c6d6be58e");
    assert_true(mu_proof_is(&p, MU_PROOF_OF_AGENT, s, a, proof));
    assert_false(mu_proof_is(&p, MU_PROOF_OF_SERVER, s, a, proof));
    assert_false(mu_proof_is(&p, MU_PROOF_OF_AGENT, a, s, proof));
    assert_false(mu_proof_is(&p, MU_PROOF_OF_AGENT, s, a, ""));
    proof[63] ^= 1;
    assert_false(mu_proof_is(&p, MU_PROOF_OF_AGENT, s, a, proof));
    assert_int_equal(mu_proof(&p, MU_PROOF_OF_SERVER, s, a, proof, &err), 0);
    assert_string_equal(proof, "2fa96fd5e546f2caf23a5e631a44f9cb3c5c292dbd439c484a50b4367631fb84");
    assert_true(mu_is_nonce(s));
    assert_false(mu_is_nonce("11"));
    mu_prover_fini(&p);
}

static void test_random_digits_are_digits_and_differ(void **state)
{
    char a[MU_NONCE_TEXT];
    char b[MU_NONCE_TEXT];
    (void)state;
    assert_int_equal(mu_random_digits(MU_NONCE_BYTES, a, NULL), 0);
    assert_int_equal(mu_random_digits(MU_NONCE_BYTES, b, NULL), 0);
    assert_true(mu_is_nonce(a) && mu_is_nonce(b));
    assert_string_not_equal(a, b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_made_can_be_read_and_is_new_each_time),
        cmocka_unit_test(test_a_file_is_a_token_or_it_is_refused),
        cmocka_unit_test(test_daemons_take_the_named_file_then_the_credential_then_none),
        cmocka_unit_test(test_places_are_those_of_daemons_and_of_people),
        cmocka_unit_test(test_a_token_is_compared_whole),
        cmocka_unit_test(test_a_proof_is_of_one_side_and_both_nonces),
        cmocka_unit_test(test_random_digits_are_digits_and_differ),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
