#include "launcher/token.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"

#define PATH_BYTES 4096
#define SYSTEM_FILE "/etc/muster/token"

/* "" where there is no home. */
static void own_file(char *ret)
{
    const char *config = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    int n = -1;
    if (config != NULL && config[0] == '/')
        n = snprintf(ret, PATH_BYTES, "%s/muster/token", config);
    else if (home != NULL && home[0] == '/')
        n = snprintf(ret, PATH_BYTES, "%s/.config/muster/token", home);
    if (n < 0 || n >= PATH_BYTES)
        ret[0] = '\0';
}

int cli_token_find(const struct cli_options *o, struct mu_token *ret, struct mu_err *err)
{
    char own[PATH_BYTES];
    struct mu_err why = {0};
    const char *named = getenv("MUSTER_TOKEN_FILE");
    *ret = (struct mu_token){""};
    if (o->token_file != NULL)
        return mu_token_read(o->token_file, ret, err) < 0 ? mu_err_wrap(err, "--token-file") : 0;
    if (named != NULL && named[0] != '\0')
        return mu_token_read(named, ret, err) < 0 ? mu_err_wrap(err, "MUSTER_TOKEN_FILE") : 0;
    own_file(own);
    int r = own[0] != '\0' ? mu_token_read(own, ret, &why) : -ENOENT;
    if (r == -ENOENT || r == -ENOTDIR || r == -EACCES)
        r = mu_token_read(SYSTEM_FILE, ret, &why);
    if (r == 0 || r == -ENOENT || r == -ENOTDIR || r == -EACCES)
        return 0;
    return mu_err_set(err, r, "%s", why.msg);
}

/* The folders of one's own file, for nobody else. */
static void make_folders(const char *path)
{
    char folder[PATH_BYTES];
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
    char own[PATH_BYTES] = "";
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
