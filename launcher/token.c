#include "launcher/token.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"

/* "" where there is no home. */
static void own_file(char *ret)
{
    mu_token_place_own(getenv("XDG_CONFIG_HOME"), getenv("HOME"), ret, CLI_PATH_BYTES);
}

/* A file that was named and is not there was mistyped: another token would not help. */
static int read_named(const char *path, const char *by, struct mu_token *ret, struct mu_err *err)
{
    char shown[120];
    int r = mu_token_read(path, ret, err);
    if (r == -ENOENT || r == -ENOTDIR)
        return mu_err_set(err, r, "%s: there is no file %s: name a copy of the server's token file",
                          by, mu_quote(shown, sizeof shown, mu_str_of(path, strlen(path))));
    return r < 0 ? mu_err_wrap(err, "%s", by) : 0;
}

static bool is_missing(int r)
{
    return r == -ENOENT || r == -ENOTDIR || r == -EACCES;
}

/* The first of the places that has one. */
static int find(const struct cli_options *o, struct mu_token *ret, char *file, struct mu_err *err)
{
    struct mu_err why = {0};
    const char *named = getenv("MUSTER_TOKEN_FILE");
    const char *by = o->token_file != NULL ? "--token-file" : "MUSTER_TOKEN_FILE";
    if (o->token_file != NULL)
        named = o->token_file;
    if (o->token_file != NULL || (named != NULL && named[0] != '\0')) {
        (void)snprintf(file, CLI_PATH_BYTES, "%s", named);
        return read_named(named, by, ret, err);
    }
    own_file(file);
    int r = file[0] != '\0' ? mu_token_read(file, ret, &why) : -ENOENT;
    if (is_missing(r)) {
        (void)snprintf(file, CLI_PATH_BYTES, "%s", MU_TOKEN_MACHINE_FILE);
        r = mu_token_read(file, ret, &why);
    }
    if (r == 0)
        return 0;
    file[0] = '\0';
    return is_missing(r) ? 0 : mu_err_set(err, r, "%s", why.msg);
}

int cli_token_find(const struct cli_options *o,
                   struct mu_token *ret,
                   char *ret_file,
                   struct mu_err *err)
{
    char file[CLI_PATH_BYTES] = "";
    *ret = (struct mu_token){""};
    int r = find(o, ret, file, err);
    if (r == 0 && ret_file != NULL)
        (void)snprintf(ret_file, CLI_PATH_BYTES, "%s", file);
    return r;
}

int cli_token_wanted(const char *where, const char *file, struct mu_err *err)
{
    char own[CLI_PATH_BYTES];
    if (file[0] != '\0')
        return mu_err_set(err, -EACCES,
                          "%s has another token than %.60s: copy the server's token file (muster "
                          "token new made it) there",
                          where, file);
    own_file(own);
    return mu_err_set(err, -EACCES,
                      "%.36s wants its token, and there is none in %.48s or " MU_TOKEN_MACHINE_FILE
                      ": copy the server's token file there, or name a copy with "
                      "--token-file=FILE",
                      where, own[0] != '\0' ? own : "--token-file");
}

/* The folders of one's own file, for nobody else. */
static void make_folders(const char *path)
{
    char folder[CLI_PATH_BYTES];
    for (const char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        (void)snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
        (void)mkdir(folder, 0700); /* Where it fails, making the file says why. */
    }
}

static int tell(const struct cli_options *o, const char *path)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    struct mu_json w;
    mu_buf_init(&b, mu_mem_default());
    if (o->json) {
        mu_json_init(&w, &b);
        mu_json_open(&w, '{');
        mu_json_kstr(&w, "file", path);
        mu_json_close(&w, '}');
        (void)mu_buf_adds(&b, "\n");
    } else {
        (void)mu_buf_addf(&b,
                          "%s has a new token. Copy it to each machine that may start or stop jobs "
                          "(scp -p), and start rdzv-server and node-agent with --token-file.\n",
                          path);
    }
    return fputs(mu_buf_cstr(&b), stdout) >= 0 && fflush(stdout) == 0 ? 0 : 1;
}

int cli_token(const struct cli_options *o)
{
    char own[CLI_PATH_BYTES] = "";
    struct mu_err err = {0};
    const char *path = o->word_count > 1 ? o->words[1] : own;
    if (path == own) {
        own_file(own);
        if (own[0] == '\0') {
            (void)fprintf(stderr, "muster token: there is no home folder for it: name a file, as "
                                  "in muster token new FILE\n");
            return 2;
        }
        make_folders(own);
    }
    if (mu_token_make(path, &err) < 0) {
        (void)fprintf(stderr, "muster token: %s\n", err.msg);
        return err.code == -EEXIST ? 2 : 1;
    }
    return tell(o, path);
}
