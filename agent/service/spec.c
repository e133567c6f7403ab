/* From a submission to a command line; see spec.h. */
#include "agent/service/spec.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "agent/service/record.h"
#include "agent/workers/warden.h"
#include "base/check.h"
#include "base/mem.h"

#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* --- reading --- */

static int bad(struct mu_err *err, const char *what)
{
    return mu_err_set(err, -EINVAL, "the submission's %s", what);
}

static bool is_texts(const cJSON *list)
{
    const cJSON *item = NULL;
    if (!cJSON_IsArray(list))
        return false;
    cJSON_ArrayForEach(item, list) if (!cJSON_IsString(item)) return false;
    return true;
}

static const char *text_of(const cJSON *json, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

/* "2", "1:4", or a number. */
static bool is_nodes(const char *text)
{
    size_t n = strspn(text, "0123456789");
    const char *rest = text + n;
    if (n == 0 || n > 6)
        return false;
    if (*rest == '\0')
        return true;
    size_t m = strspn(rest + 1, "0123456789");
    return *rest == ':' && m > 0 && m <= 6 && rest[1 + m] == '\0';
}

/* Flags alone: a plain word would be taken for the program. */
static bool are_flags(const cJSON *list)
{
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, list)
    {
        const char *p = item->valuestring;
        if (p[0] != '-' || p[1] == '\0' || strcmp(p, "--") == 0 || strncmp(p, "--service", 9) == 0)
            return false;
    }
    return true;
}

static int take_fields(struct spec *s, struct mu_err *err)
{
    const cJSON *argv = cJSON_GetObjectItemCaseSensitive(s->json, "argv");
    const cJSON *env = cJSON_GetObjectItemCaseSensitive(s->json, "env");
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(s->json, "agent_args");
    const cJSON *nnodes = cJSON_GetObjectItemCaseSensitive(s->json, "nnodes");
    const cJSON *item = NULL;
    if (!cJSON_IsObject(s->json))
        return bad(err, "text is no JSON object");
    if (!is_texts(argv) || cJSON_GetArraySize(argv) == 0 || argv->child->valuestring[0] == '\0' ||
        argv->child->valuestring[0] == '-')
        return bad(err, "argv is no list of texts that begins with a program");
    if (args != NULL && !cJSON_IsNull(args) && (!is_texts(args) || !are_flags(args)))
        return bad(err, "agent_args is no list of flags, each as --NAME=VALUE");
    if (env != NULL && !cJSON_IsNull(env) && !cJSON_IsObject(env))
        return bad(err, "env is no object");
    cJSON_ArrayForEach(item, env)
    {
        if (!cJSON_IsString(item) || item->string[0] == '\0' || strchr(item->string, '=') != NULL)
            return bad(err, "env holds something else than names with texts");
    }
    bool has_cwd = cJSON_GetObjectItemCaseSensitive(s->json, "cwd") != NULL;
    s->cwd = has_cwd ? text_of(s->json, "cwd") : "."; /* The service's own. */
    if (has_cwd && (s->cwd == NULL || s->cwd[0] != '/'))
        return bad(err, "cwd is no absolute path");
    s->nnodes = cJSON_IsString(nnodes) ? nnodes->valuestring : nnodes == NULL ? "1" : "";
    if (!is_nodes(s->nnodes))
        return bad(err, "nnodes is not N or MIN:MAX");
    s->argv = argv;
    s->env = cJSON_IsObject(env) ? env : NULL;
    s->agent_args = cJSON_IsArray(args) ? args : NULL;
    return 0;
}

int spec_read(struct mu_str text, struct spec *ret, struct mu_err *err)
{
    *ret = (struct spec){.json = cJSON_ParseWithLength(text.p, text.n)};
    if (ret->json == NULL)
        return bad(err, "text is no JSON object");
    int r = take_fields(ret, err);
    if (r < 0)
        spec_free(ret);
    return r;
}

void spec_free(struct spec *s)
{
    cJSON_Delete(s->json);
    *s = (struct spec){0};
}

/* --- checking --- */

static const char *value_in(char *const *envp, const char *name)
{
    size_t n = strlen(name);
    for (; *envp != NULL; envp++)
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=')
            return *envp + n + 1;
    return NULL;
}

static bool has_flag(const struct spec *s, const char *const *flags)
{
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, s->agent_args)
    {
        for (const char *const *f = flags; *f != NULL; f++)
            if (strcmp(item->valuestring, *f) == 0)
                return true;
    }
    return false;
}

static bool in_folder(const char *dir, size_t n, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    int len = n == 0 ? snprintf(path, sizeof path, "%s", name)
                     : snprintf(path, sizeof path, "%.*s/%s", (int)n, dir, name);
    return len > 0 && (size_t)len < sizeof path && stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

static bool in_path(const char *dirs, const char *name)
{
    for (;;) {
        size_t n = strcspn(dirs, ":");
        if (n > 0 && in_folder(dirs, n, name))
            return true;
        if (dirs[n] == '\0')
            return false;
        dirs += n + 1;
    }
}

/* As node-agent looks for it: a file of the folder, or, by its name alone, in PATH. */
static bool is_there(const struct spec *s, char *const *envp)
{
    static const char *const modules[] = {"-m", "--module", NULL};
    const char *name = s->argv->child->valuestring;
    const char *path = value_in(envp, "PATH");
    if (has_flag(s, modules))
        return true; /* Python's to find. */
    if (name[0] == '/')
        return in_folder("", 0, name);
    if (in_folder(s->cwd, strlen(s->cwd), name))
        return true;
    return strchr(name, '/') == NULL && in_path(path != NULL ? path : PATH_DEFAULT, name);
}

int spec_check(const struct spec *s,
               const struct spec_place *p,
               char *const *envp,
               struct mu_err *err)
{
    struct stat st;
    char shown[96];
    const char *user = text_of(s->json, "user");
    const char *name = s->argv->child->valuestring;
    if (user != NULL && user[0] != '\0' && strcmp(user, p->user) != 0)
        return mu_err_set(err, -EPERM, "user %s is wanted, and jobs on this node run as %s alone",
                          mu_quote(shown, sizeof shown, mu_str_of(user, strlen(user))), p->user);
    (void)mu_quote(shown, sizeof shown, mu_str_of(s->cwd, strlen(s->cwd)));
    if (stat(s->cwd, &st) < 0)
        return mu_err_set(err, -errno, "its folder %s: %s on this node", shown, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return mu_err_set(err, -ENOTDIR, "its folder %s is no folder on this node", shown);
    if (access(s->cwd, X_OK) < 0)
        return mu_err_set(err, -errno,
                          "its folder %s cannot be entered by user %s on this node: %s", shown,
                          p->user, strerror(errno));
    if (!is_there(s, envp))
        return mu_err_set(err, -ENOENT,
                          "its program %s is not on this node: not in its folder, nor in PATH",
                          mu_quote(shown, sizeof shown, mu_str_of(name, strlen(name))));
    for (uint32_t i = 0; i < p->gpu_count; i++)
        if (p->gpus[i] < 0 || (uint32_t)p->gpus[i] >= p->node_gpus)
            return mu_err_set(err, -ENODEV, "GPU %d is wanted, which this node does not have",
                              p->gpus[i]);
    return 0;
}

/* --- building --- */

struct words {
    struct arena *arena;
    char **v;
    size_t n;
    size_t cap;
    bool oom;
};

static void add(struct words *w, char *text)
{
    if (text == NULL || w->n + 1 >= w->cap) {
        w->oom = true;
        return;
    }
    w->v[w->n++] = text;
    w->v[w->n] = NULL;
}

static void make_room(struct words *w, struct arena *arena, size_t count)
{
    *w = (struct words){.arena = arena, .cap = count + 1};
    w->v = arena_alloc(arena, w->cap * sizeof *w->v);
    w->oom = w->v == NULL;
    if (!w->oom)
        w->v[0] = NULL;
}

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static const char RDZV_CONF[] = "--rdzv-conf=";

/* An agent whose server is away would serve the rendezvous itself, where the server's host is its
 * own: never here. Last words win, so ours come last. */
static char *conf_of(const struct spec *s, struct arena *arena)
{
    const cJSON *item = NULL;
    const char *given = NULL;
    cJSON_ArrayForEach(item, s->agent_args) if (starts_with(item->valuestring, RDZV_CONF)) given =
        item->valuestring + sizeof RDZV_CONF - 1;
    return given != NULL && given[0] != '\0'
               ? arena_printf(arena, "%s%s,is_host=0", RDZV_CONF, given)
               : arena_printf(arena, "%sis_host=0", RDZV_CONF);
}

static void build_argv(const struct spec *s, const struct spec_place *p, struct words *w)
{
    const cJSON *item = NULL;
    add(w, arena_printf(w->arena, "node-agent"));
    add(w, arena_printf(w->arena, "--exit-status=first"));
    cJSON_ArrayForEach(item, s->agent_args) add(w, arena_printf(w->arena, "%s", item->valuestring));
    add(w, arena_printf(w->arena, "--surroundings=none"));
    add(w, conf_of(s, w->arena));
    add(w, arena_printf(w->arena, "--label"));
    add(w, arena_printf(w->arena, "--rdzv=%s", p->server));
    add(w, arena_printf(w->arena, "--rdzv-id=%s", p->job));
    add(w, arena_printf(w->arena, "--nnodes=%s", s->nnodes));
    add(w, arena_printf(w->arena, "--nproc-per-node=%u", p->nproc));
    if (p->local_addr != NULL)
        add(w, arena_printf(w->arena, "--local-addr=%s", p->local_addr));
    if (p->token_file != NULL)
        add(w, arena_printf(w->arena, "--token-file=%s", p->token_file));
    cJSON_ArrayForEach(item, s->argv) add(w, arena_printf(w->arena, "%s", item->valuestring));
}

/* What a job never gets from the service's own environment or from a submission: who the service is
 * to its manager, its secrets, and flags by another way. */
static bool is_kept_back(const char *name)
{
    static const char *const exact[] = {"NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY",
                                        "INVOCATION_ID", "JOURNAL_STREAM",
                                        "MAINPID",       "MANAGERPID"};
    static const char *const starts[] = {"WATCHDOG_", "LISTEN_", "MUSTER_TOKEN", "MUSTER_SERVICE",
                                         "PET_"};
    for (size_t i = 0; i < MU_COUNT(exact); i++)
        if (strcmp(name, exact[i]) == 0)
            return true;
    for (size_t i = 0; i < MU_COUNT(starts); i++)
        if (starts_with(name, starts[i]))
            return true;
    return false;
}

/* And what it does get of it, beside who it is. */
static bool is_passed_on(const char *entry)
{
    static const char *const names[] = {
        "PATH=",   "LANG=",        "LANGUAGE=",        "LC_",        "TZ=",
        "TMPDIR=", "SHELL=",       "LD_LIBRARY_PATH=", "CUDA_HOME=", "CUDA_PATH=",
        "NCCL_",   "PYTHON_EXEC=", "XDG_RUNTIME_DIR="};
    for (size_t i = 0; i < MU_COUNT(names); i++)
        if (starts_with(entry, names[i]))
            return true;
    return false;
}

/* A later entry takes the place of an earlier one of the same name. */
static void set(struct words *w, const char *name, const char *value)
{
    char *entry = arena_printf(w->arena, "%s=%s", name, value);
    size_t n = strlen(name) + 1;
    for (size_t i = 0; entry != NULL && i < w->n; i++) {
        if (strncmp(w->v[i], entry, n) == 0) {
            w->v[i] = entry;
            return;
        }
    }
    add(w, entry);
}

/* The n-th of the devices that the service may see. */
static const char *device(struct arena *arena, const struct spec_place *p, int32_t n)
{
    const char *at = p->visible;
    for (int32_t i = 0; at != NULL && i < n; i++) {
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    return at != NULL ? arena_printf(arena, "%.*s", (int)strcspn(at, ","), at)
                      : arena_printf(arena, "%d", n);
}

static void set_gpus(struct words *w, const struct spec_place *p)
{
    const char *list = "";
    if (p->node_gpus == 0)
        return;
    for (uint32_t i = 0; i < p->gpu_count && list != NULL; i++) {
        const char *one = device(w->arena, p, p->gpus[i]);
        list = one != NULL ? arena_printf(w->arena, "%s%s%s", list, i > 0 ? "," : "", one) : NULL;
    }
    if (list == NULL)
        w->oom = true;
    else
        set(w, "CUDA_VISIBLE_DEVICES", list);
}

static void build_env(const struct spec *s, const struct spec_place *p, struct words *w)
{
    const cJSON *item = NULL;
    const char *pid = arena_printf(w->arena, "%d", p->service_pid);
    set(w, "PATH", PATH_DEFAULT);
    set(w, "HOME", p->home);
    set(w, "USER", p->user);
    set(w, "LOGNAME", p->user);
    for (char *const *e = p->environment; *e != NULL; e++) {
        const char *equals = strchr(*e, '=');
        char *name = equals != NULL && is_passed_on(*e)
                         ? arena_printf(w->arena, "%.*s", (int)(equals - *e), *e)
                         : NULL;
        if (name != NULL)
            set(w, name, equals + 1);
    }
    cJSON_ArrayForEach(item, s->env)
    {
        if (!is_kept_back(item->string))
            set(w, item->string, item->valuestring);
    }
    set(w, WARDEN_SERVICE_VARIABLE, pid != NULL ? pid : "");
    set(w, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", RECORD_PREFIX);
    set_gpus(w, p);
}

static size_t count_env(char *const *envp)
{
    size_t n = 0;
    while (envp[n] != NULL)
        n++;
    return n;
}

int spec_build(const struct spec *s,
               const struct spec_place *p,
               struct arena *arena,
               char ***ret_argv,
               char ***ret_envp,
               struct mu_err *err)
{
    struct words argv;
    struct words envp;
    size_t args = (size_t)cJSON_GetArraySize(s->agent_args);
    make_room(&argv, arena, args + (size_t)cJSON_GetArraySize(s->argv) + 16);
    make_room(&envp, arena, count_env(p->environment) + (size_t)cJSON_GetArraySize(s->env) + 8);
    if (!argv.oom && !envp.oom) {
        build_argv(s, p, &argv);
        build_env(s, p, &envp);
    }
    if (argv.oom || envp.oom)
        return mu_err_set(err, -ENOMEM, "no memory for the job's command line");
    *ret_argv = argv.v;
    *ret_envp = envp.v;
    return 0;
}
