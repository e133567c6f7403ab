/* The token's file: read with every doubt, made so that nobody else can read it. */
#include "base/token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/parse.h"
#include "base/str.h"

#define CREDENTIALS "/run/credentials" /* Where systemd has those of its services. */
#define PATH_BYTES 4096

static const char *shown(const char *path, char *dst, size_t cap)
{
    return mu_quote(dst, cap, mu_str_of(path, strlen(path)));
}

/* foreign: it lies in a folder of the service manager, which gives it to a service's user by an
 * ACL; that shows as a group's right. */
static int check_file(int fd, const char *path, bool foreign, struct mu_err *err)
{
    struct stat st;
    char name[120];
    mode_t wide = foreign ? S_IRWXO : S_IRWXG | S_IRWXO;
    if (fstat(fd, &st) < 0)
        return mu_err_set(err, -errno, "%s: %s", shown(path, name, sizeof name), strerror(errno));
    if (!S_ISREG(st.st_mode))
        return mu_err_set(
            err, -EINVAL,
            "%s is no regular file: name a token's file, as muster token new makes it",
            shown(path, name, sizeof name));
    if ((st.st_mode & wide) != 0)
        return mu_err_set(err, -EPERM,
                          "%s can be read by others (mode %04o), so it is no secret: chmod 600 it, "
                          "or make a new one",
                          shown(path, name, sizeof name), (unsigned)(st.st_mode & 07777));
    if (!foreign && geteuid() != 0 && st.st_uid != geteuid() && st.st_uid != 0)
        return mu_err_set(err, -EPERM,
                          "%s belongs to another user, who knows the token: make one of your own "
                          "with muster token new",
                          shown(path, name, sizeof name));
    return 0;
}

static int take(const char *text, size_t n, struct mu_token *ret)
{
    bool good = n == MU_TOKEN_DIGITS || (n == MU_TOKEN_DIGITS + 1 && text[n - 1] == '\n');
    for (size_t i = 0; good && i < MU_TOKEN_DIGITS; i++)
        good = mu_hex_digit(text[i]) >= 0;
    if (!good)
        return -EINVAL;
    for (size_t i = 0; i < MU_TOKEN_DIGITS; i++)
        ret->text[i] = "0123456789abcdef"[mu_hex_digit(text[i])];
    ret->text[MU_TOKEN_DIGITS] = '\0';
    return 0;
}

static bool lies_in(const char *path, const char *folder)
{
    size_t n = folder != NULL ? strlen(folder) : 0;
    return n > 0 && folder[0] == '/' && strncmp(path, folder, n) == 0 && path[n] == '/' &&
           strstr(path, "/../") == NULL;
}

static const char *by_whom(const char *named)
{
    return named != NULL ? "--token-file" : "the credential " MU_TOKEN_CREDENTIAL;
}

static int read_file(const char *path, bool foreign, struct mu_token *ret, struct mu_err *err)
{
    char text[MU_TOKEN_DIGITS + 8];
    char name[120];
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return mu_err_set(err, -errno, "%s: %s%s", shown(path, name, sizeof name), strerror(errno),
                          errno == ENOENT ? MU_TOKEN_REMEDY : "");
    int r = check_file(fd, path, foreign, err);
    if (r < 0)
        return r;
    ssize_t n = read(fd, text, sizeof text);
    if (n < 0)
        return mu_err_set(err, -errno, "%s: %s", shown(path, name, sizeof name), strerror(errno));
    r = take(text, (size_t)n, ret);
    explicit_bzero(text, sizeof text);
    if (r < 0)
        return mu_err_set(
            err, r,
            "%s holds no token, which is 64 hexadecimal digits and a newline: copy it "
            "anew, or make one with muster token new",
            shown(path, name, sizeof name));
    return 0;
}

int mu_token_read(const char *path, struct mu_token *ret, struct mu_err *err)
{
    return read_file(path, lies_in(path, CREDENTIALS), ret, err);
}

int mu_token_place_daemon(
    const char *named, const char *credentials, char *ret, size_t cap, struct mu_err *err)
{
    bool has_folder = credentials != NULL && credentials[0] == '/';
    if (named == NULL && !has_folder)
        return 0;
    int n = named != NULL ? snprintf(ret, cap, "%s", named)
                          : snprintf(ret, cap, "%s/" MU_TOKEN_CREDENTIAL, credentials);
    if (n < 0 || (size_t)n >= cap)
        return mu_err_set(err, -ENAMETOOLONG, "%s: longer than %zu bytes", by_whom(named), cap - 1);
    /* A unit that names a credential runs without one where there is none. */
    return named != NULL || access(ret, F_OK) == 0 || errno != ENOENT;
}

void mu_token_place_own(const char *config, const char *home, char *ret, size_t cap)
{
    int n = -1;
    if (config != NULL && config[0] == '/')
        n = snprintf(ret, cap, "%s/muster/token", config);
    else if (home != NULL && home[0] == '/')
        n = snprintf(ret, cap, "%s/.config/muster/token", home);
    if (n < 0 || (size_t)n >= cap)
        ret[0] = '\0';
}

int mu_token_read_daemon(const char *named,
                         const char *credentials,
                         struct mu_token *ret,
                         struct mu_err *err)
{
    char path[PATH_BYTES];
    *ret = (struct mu_token){""};
    int r = mu_token_place_daemon(named, credentials, path, sizeof path, err);
    if (r <= 0)
        return r;
    r = read_file(path, lies_in(path, CREDENTIALS) || lies_in(path, credentials), ret, err);
    return r < 0 ? (mu_err_wrap(err, "%s", by_whom(named)), r) : 0;
}

int mu_random_digits(size_t n, char *ret, struct mu_err *err)
{
    unsigned char bytes[MU_TOKEN_BYTES];
    MU_ASSERT(n <= sizeof bytes);
    ssize_t got = -1;
    do
        got = getrandom(bytes, n, 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)n)
        return mu_err_set(err, -EIO, "the kernel has no random bytes: %s", strerror(errno));
    for (size_t i = 0; i < n; i++) {
        ret[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        ret[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    ret[2 * n] = '\0';
    explicit_bzero(bytes, sizeof bytes);
    return 0;
}

int mu_token_make(const char *path, struct mu_err *err)
{
    char text[MU_TOKEN_DIGITS + 2];
    char name[120];
    int r = mu_random_digits(MU_TOKEN_BYTES, text, err);
    if (r < 0)
        return r;
    text[MU_TOKEN_DIGITS] = '\n';
    MU_CLEANUP(mu_closep)
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST)
        r = mu_err_set(err, -EEXIST,
                       "%s is there already: those who have its token would be shut out; remove it "
                       "first, or name another file",
                       shown(path, name, sizeof name));
    else if (fd < 0)
        r = mu_err_set(err, -errno, "%s: %s", shown(path, name, sizeof name), strerror(errno));
    else if (fchmod(fd, 0600) < 0 || write(fd, text, MU_TOKEN_DIGITS + 1) != MU_TOKEN_DIGITS + 1 ||
             fsync(fd) < 0) {
        r = mu_err_set(err, errno != 0 ? -errno : -EIO, "%s cannot be written: %s",
                       shown(path, name, sizeof name), strerror(errno));
        (void)unlink(path); /* Half a token is none. */
    }
    explicit_bzero(text, sizeof text);
    return r;
}

void mu_token_bytes(const struct mu_token *t, unsigned char ret[MU_TOKEN_BYTES])
{
    MU_ASSERT(mu_token_is_set(t));
    for (size_t i = 0; i < MU_TOKEN_BYTES; i++)
        ret[i] =
            (unsigned char)(mu_hex_digit(t->text[2 * i]) << 4 | mu_hex_digit(t->text[2 * i + 1]));
}

bool mu_secret_equal(const char *a, const char *b, size_t n)
{
    volatile unsigned char differ = 0;
    for (size_t i = 0; i < n; i++)
        differ = (unsigned char)(differ | (unsigned char)(a[i] ^ b[i]));
    return differ == 0;
}

bool mu_token_is(const struct mu_token *t, const char *text, size_t n)
{
    struct mu_token said;
    if (!mu_token_is_set(t) || n != MU_TOKEN_DIGITS || take(text, n, &said) < 0)
        return false;
    bool same = mu_secret_equal(t->text, said.text, MU_TOKEN_DIGITS);
    mu_token_wipe(&said);
    return same;
}

void mu_token_wipe(struct mu_token *t)
{
    explicit_bzero(t, sizeof *t);
}
