/* Error files read and copied; see errfile.h. Two forms are known:
 *   {"message": {"message": "<Type>: <text>", "extraInfo": {"py_callstack": "…", "timestamp":
 * "<seconds>"}}}
 *   {"message": "<text>", "timestamp": "<seconds>"} */
#include "agent/workers/errfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cJSON.h>

#include "base/mem.h"
#include "base/cleanup.h"
#include "base/json.h"

static void cjsonp(cJSON **j)
{
    cJSON_Delete(*j);
}

/* The whole file with a NUL behind it. Returns its bytes, or a negative errno. */
static ssize_t read_file(const char *path, char **ret)
{
    /* Non-blocking: a worker may have left a pipe there. */
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    if (st.st_size > ERRFILE_BYTES_MAX)
        return -EFBIG;
    size_t cap = (size_t)st.st_size;
    MU_CLEANUP(mu_freep) char *text = mu_alloc(mu_mem_default(), cap + 1);
    if (text == NULL)
        return -ENOMEM;
    ssize_t n = read(fd, text, cap);
    if (n < 0)
        return -errno;
    text[n] = '\0';
    *ret = text;
    text = NULL;
    return n;
}

/* `n` bytes at most into the message, whole characters, one line. */
static void set_message(struct plan_error *e, const char *text, size_t n)
{
    size_t at = 0;
    while (at < n) {
        size_t len = mu_utf8_len(text + at, n - at);
        size_t step = len == 0 ? 1 : len;
        if (at + step >= sizeof(e->message))
            break;
        if (len == 0 || (unsigned char)text[at] < ' ')
            e->message[at] = len == 0 ? '?' : ' ';
        else
            memcpy(e->message + at, text + at, len);
        at += step;
    }
    e->message[at] = '\0';
}

/* The first line of a message; the last one with text of a traceback, which is where the exception
 * stands. */
static void set_first_line(struct plan_error *e, const char *text)
{
    text += strspn(text, " \t\r\n");
    set_message(e, text, strcspn(text, "\r\n"));
}

static void set_last_line(struct plan_error *e, const char *text)
{
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) != NULL)
        n--;
    size_t start = n;
    while (start > 0 && text[start - 1] != '\n')
        start--;
    set_message(e, text + start, n - start);
}

static const char *string_in(const cJSON *object, const char *key)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return s != NULL && s[0] != '\0' ? s : NULL;
}

static int64_t seconds_in(const cJSON *object)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "timestamp");
    double s = cJSON_IsString(item) ? strtod(item->valuestring, NULL) : cJSON_GetNumberValue(item);
    return s > 0 && s < 1e12 ? (int64_t)s : 0; /* False for NaN as well. */
}

static void take(struct plan_error *e, const cJSON *root)
{
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(root, "message");
    const cJSON *extra = cJSON_GetObjectItemCaseSensitive(message, "extraInfo");
    const char *said =
        cJSON_IsString(message) ? string_in(root, "message") : string_in(message, "message");
    const char *stack = string_in(extra, "py_callstack");
    e->unix_s = seconds_in(cJSON_IsString(message) ? root : extra);
    if (said != NULL)
        set_first_line(e, said);
    else if (stack != NULL)
        set_last_line(e, stack);
    else
        (void)snprintf(e->message, sizeof(e->message), "its error file has no message");
    const char *text = stack != NULL ? stack : said;
    e->text = text != NULL ? mu_strdup(mu_mem_default(), text) : NULL;
}

void errfile_read(const char *path, struct plan_error *ret)
{
    MU_CLEANUP(mu_freep) char *text = NULL;
    ssize_t n = read_file(path, &text);
    if (n == -ENOENT || n == -ENOTDIR)
        return;
    ret->found = true;
    if (n < 0) {
        (void)snprintf(ret->message, sizeof(ret->message), "its error file cannot be read: %s",
                       strerror((int)-n));
        return;
    }
    MU_CLEANUP(cjsonp) cJSON *root = cJSON_ParseWithLength(text, (size_t)n);
    if (root == NULL) {
        (void)snprintf(ret->message, sizeof(ret->message),
                       n == 0 ? "its error file is empty" : "its error file is no JSON");
        return;
    }
    take(ret, root);
}

void plan_error_last_line(struct plan_error *e, const char *text)
{
    set_last_line(e, text);
}

void plan_error_fini(struct plan_error *e)
{
    free(e->text);
    e->text = NULL;
}

int errfile_write(const char *path, const char *text, size_t n)
{
    char aside[1400];
    if ((size_t)snprintf(aside, sizeof(aside), "%s.%d.tmp", path, (int)getpid()) >= sizeof(aside))
        return -ENAMETOOLONG;
    MU_CLEANUP(mu_closep) int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    ssize_t put = write(fd, text, n);
    int r = put < 0 ? -errno : (size_t)put < n ? -ENOSPC : 0;
    if (r == 0 && rename(aside, path) < 0)
        r = -errno;
    if (r < 0)
        (void)unlink(aside);
    return r;
}

int errfile_copy(const char *from, const char *to)
{
    MU_CLEANUP(mu_freep) char *text = NULL;
    ssize_t n = read_file(from, &text);
    return n < 0 ? (int)n : errfile_write(to, text, (size_t)n);
}

int plan_copy_error(const char *path, const char *to, int32_t exit_code, struct mu_err *err)
{
    MU_CLEANUP(mu_freep) char *text = NULL;
    MU_CLEANUP(mu_freep) char *printed = NULL;
    ssize_t n = read_file(path, &text);
    if (n < 0)
        return mu_err_set(err, (int)n, "read error file '%.120s': %s", path, strerror((int)-n));
    MU_CLEANUP(cjsonp) cJSON *root = cJSON_ParseWithLength(text, (size_t)n);
    cJSON *message = cJSON_GetObjectItemCaseSensitive(root, "message");
    if (cJSON_IsObject(message)) {
        cJSON_DeleteItemFromObjectCaseSensitive(message, "errorCode");
        (void)cJSON_AddNumberToObject(message, "errorCode",
                                      exit_code); /* Without memory it goes without. */
        printed = cJSON_PrintUnformatted(root);
    }
    /* What we do not understand is handed up as it is. */
    int r = printed != NULL ? errfile_write(to, printed, strlen(printed))
                            : errfile_write(to, text, (size_t)n);
    return r < 0 ? mu_err_set(err, r, "write error file '%.120s': %s", to, strerror(-r)) : 0;
}
