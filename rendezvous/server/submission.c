/* Submissions: everything that is not asked for is refused by its name, so that a slip of the pen
 * is no job that runs otherwise than meant. */
#include "rendezvous/server/submission.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/json.h"
#include "base/parse.h"

#define ARGS_MAX 4096
#define SUBMITTER_BYTES 256
#define PATH_BYTES 4096
#define STRING_BYTES ((size_t)128 << 10) /* Linux's MAX_ARG_STRLEN: more cannot be started. */

/* Flags of node-agent that a submitter may give. What says where agents meet, how many there are,
 * where files go, or what is run beside the workers is the service's. */
static const struct {
    const char *name;
    bool value;
} agent_flags[] = {
    {"max-restarts", true},
    {"monitor-interval", true},
    {"start-method", true},
    {"event-log-handler", true},
    {"role", true},
    {"module", false},
    {"no-python", false},
    {"run-path", false},
    {"local-ranks-filter", true},
    {"numa-binding", true},
    {"shutdown-timeout", true},
    {"virtual-local-rank", false},
    {"on-join", true},
    {"restarts-given-back-after", true},
    {"same-failure", true},
    {"last-lines", true},
    {"drain-timeout", true},
    {"progress-timeout", true},
    {"silence-timeout", true},
    {"hang-hook-timeout", true},
    {"server-timeout", true},
};

static const char id_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

/* --- JSON --- */

static bool is_utf8(const char *s)
{
    size_t n = strlen(s);
    for (size_t at = 0; at < n;) {
        size_t len = mu_utf8_len(s + at, n - at);
        if (len == 0)
            return false;
        at += len;
    }
    return true;
}

/* As it is, or as an escape; a backslash that is itself escaped begins none. */
static bool has_nul(struct mu_str body)
{
    static const char escape[] = "\\u0000";
    size_t n = sizeof escape - 1;
    for (size_t i = 0; i < body.n; i++) {
        if (body.p[i] == '\0' || (body.n - i >= n && memcmp(body.p + i, escape, n) == 0))
            return true;
        i += body.p[i] == '\\' && i + 1 < body.n && body.p[i + 1] != '\0';
    }
    return false;
}

/* NULL with a sentence. */
static cJSON *parse(struct mu_str body, struct mu_err *err)
{
    const char *end = NULL;
    if (body.n == 0) {
        (void)mu_err_set(err, -EINVAL, "the request has no body: a JSON object is needed");
        return NULL;
    }
    if (has_nul(body)) {
        (void)mu_err_set(err, -EINVAL, "the body has a NUL in it");
        return NULL;
    }
    cJSON *root = cJSON_ParseWithLengthOpts(body.p, body.n, &end, 0);
    while (root != NULL && end < body.p + body.n && strchr(" \t\r\n", *end) != NULL && *end != '\0')
        end++;
    if (root == NULL || !cJSON_IsObject(root) || end != body.p + body.n) {
        cJSON_Delete(root);
        (void)mu_err_set(err, -EINVAL, "the body is not one JSON object");
        return NULL;
    }
    return root;
}

/* NULL: it is not there, or is null. */
static const cJSON *field(const cJSON *root, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);
    return cJSON_IsNull(item) ? NULL : item;
}

static int
check_fields(const cJSON *root, const char *const *known, size_t count, struct mu_err *err)
{
    uint64_t seen = 0;
    char shown[80];
    for (const cJSON *item = root->child; item != NULL; item = item->next) {
        size_t i = 0;
        while (i < count && strcmp(known[i], item->string) != 0)
            i++;
        (void)mu_quote(shown, sizeof shown, mu_str_of(item->string, strlen(item->string)));
        if (i == count)
            return mu_err_set(err, -EINVAL, "there is no field %s here", shown);
        if ((seen >> i & 1) != 0)
            return mu_err_set(err, -EINVAL, "field %s is there twice", shown);
        seen |= UINT64_C(1) << i;
    }
    return 0;
}

/* NULL with a sentence. */
static const char *text_of(const cJSON *item, const char *name, size_t bytes, struct mu_err *err)
{
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= bytes ||
        !is_utf8(item->valuestring)) {
        (void)mu_err_set(err, -EINVAL, "'%s' is not a text of at most %zu bytes", name, bytes - 1);
        return NULL;
    }
    return item->valuestring;
}

static int whole(
    const cJSON *item, const char *name, int64_t min, int64_t max, int64_t *ret, struct mu_err *err)
{
    if (item == NULL)
        return 0;
    double d = cJSON_IsNumber(item) ? item->valuedouble : -1e9;
    if (!(d >= (double)min && d <= (double)max) || d != (double)(int64_t)d)
        return mu_err_set(err, -EINVAL, "'%s' is not a whole number from %lld to %lld", name,
                          (long long)min, (long long)max);
    *ret = (int64_t)d;
    return 0;
}

/* --- fields --- */

static int read_texts(const cJSON *list, const char *name, size_t bytes, struct mu_err *err)
{
    int count = 0;
    if (!cJSON_IsArray(list))
        return mu_err_set(err, -EINVAL, "'%s' is not a list of texts", name);
    for (const cJSON *e = list->child; e != NULL; e = e->next) {
        if (++count > ARGS_MAX)
            return mu_err_set(err, -EINVAL, "'%s' has more than %d texts", name, ARGS_MAX);
        if (text_of(e, name, bytes, err) == NULL)
            return -EINVAL;
    }
    return 0;
}

static int read_nnodes(const cJSON *item, struct submission *ret, struct mu_err *err)
{
    int64_t n = 1;
    char min[16] = "";
    ret->nodes_min = 1;
    ret->nodes_max = 1;
    if (item == NULL)
        return 0;
    if (cJSON_IsNumber(item)) {
        int r = whole(item, "nnodes", 1, MU_NODES_MAX, &n, err);
        ret->nodes_min = (uint32_t)n;
        ret->nodes_max = (uint32_t)n;
        return r;
    }
    const char *text = text_of(item, "nnodes", 32, err);
    if (text == NULL)
        return -EINVAL;
    const char *colon = strchr(text, ':');
    size_t len = colon != NULL ? (size_t)(colon - text) : strlen(text);
    if (len < sizeof min)
        memcpy(min, text, len);
    if (mu_parse_u32(min, 1, MU_NODES_MAX, "nnodes", &ret->nodes_min, NULL) < 0 ||
        mu_parse_u32(colon != NULL ? colon + 1 : min, 1, MU_NODES_MAX, "nnodes", &ret->nodes_max,
                     NULL) < 0 ||
        ret->nodes_min > ret->nodes_max)
        return mu_err_set(err, -EINVAL, "'nnodes' is neither N nor MIN:MAX, from 1 to %d",
                          MU_NODES_MAX);
    return 0;
}

static int check_agent_arg(const char *arg, struct mu_err *err)
{
    char shown[80];
    (void)mu_quote(shown, sizeof shown, mu_str_of(arg, strlen(arg)));
    const char *name = arg + 2;
    const char *equals = strchr(arg, '=');
    if (strncmp(arg, "--", 2) != 0)
        return mu_err_set(err, -EINVAL,
                          "'agent_args': %s is not a flag: each is one text, as --max-restarts=3",
                          shown);
    size_t n = equals != NULL ? (size_t)(equals - name) : strlen(name);
    for (size_t i = 0; i < MU_COUNT(agent_flags); i++) {
        const char *known = agent_flags[i].name;
        if (strlen(known) != n || strncmp(known, name, n) != 0)
            continue;
        if (agent_flags[i].value == (equals != NULL))
            return 0;
        return mu_err_set(err, -EINVAL,
                          agent_flags[i].value ? "'agent_args': write --%s=VALUE, as one text"
                                               : "'agent_args': --%s takes no value",
                          known);
    }
    return mu_err_set(err, -EINVAL,
                      "'agent_args': %s is not for a submitter to set (docs/protocol.md "
                      "\"Submissions\" has those that are)",
                      shown);
}

static bool is_env_name(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < 256 && strspn(name, "0123456789") == 0 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == n;
}

static int check_env(const cJSON *env, struct mu_err *err)
{
    char shown[80];
    if (!cJSON_IsObject(env))
        return mu_err_set(err, -EINVAL, "'env' is not an object of texts");
    for (const cJSON *e = env->child; e != NULL; e = e->next) {
        (void)mu_quote(shown, sizeof shown, mu_str_of(e->string, strlen(e->string)));
        if (!is_env_name(e->string))
            return mu_err_set(err, -EINVAL, "'env': %s is not a variable's name", shown);
        size_t used = strlen(e->string) + 1;
        if (used >= STRING_BYTES)
            return mu_err_set(err, -EINVAL, "'env': a name is longer than a system takes");
        if (text_of(e, "env", STRING_BYTES - used, err) == NULL)
            return -EINVAL;
    }
    return 0;
}

/* Letters, digits, dots, dashes and underscores; no dot or dash in front. */
static int check_id(const char *text, const char *name, struct mu_err *err)
{
    size_t n = strlen(text);
    if (n == 0 || strspn(text, id_chars) != n || text[0] == '.' || text[0] == '-')
        return mu_err_set(err, -EINVAL,
                          "'%s' is not letters, digits, dots, dashes and underscores, beginning "
                          "with a letter, digit or underscore",
                          name);
    return 0;
}

/* A name for people: the program's, as far as it is letters. */
static void name_of_program(const char *program, char *ret, size_t cap)
{
    const char *slash = strrchr(program, '/');
    const char *base = slash != NULL ? slash + 1 : program;
    size_t n = 0;
    for (; base[n] != '\0' && n + 1 < cap && n < 40; n++)
        ret[n] = strchr(id_chars, base[n]) != NULL ? base[n] : '_';
    ret[n] = '\0';
    if (n == 0 || ret[0] == '.' || ret[0] == '-')
        (void)mu_strcopy(ret, cap, "job");
}

static int
read_name(const cJSON *root, const cJSON *argv, struct submission *ret, struct mu_err *err)
{
    const cJSON *name = field(root, "name");
    const cJSON *id = field(root, "id");
    const char *text = NULL;
    if (id != NULL) {
        text = text_of(id, "id", sizeof ret->id, err);
        if (text == NULL || check_id(text, "id", err) < 0)
            return -EINVAL;
        (void)mu_strcopy(ret->id, sizeof ret->id, text);
    }
    if (name == NULL) {
        name_of_program(argv->child->valuestring, ret->name, sizeof ret->name);
        return 0;
    }
    text = text_of(name, "name", sizeof ret->name, err);
    if (text == NULL || check_id(text, "name", err) < 0)
        return -EINVAL;
    return mu_strcopy(ret->name, sizeof ret->name, text);
}

static int check_texts(const cJSON *root, struct mu_err *err)
{
    const cJSON *argv = field(root, "argv");
    const cJSON *args = field(root, "agent_args");
    const cJSON *env = field(root, "env");
    const cJSON *cwd = field(root, "cwd");
    const cJSON *who = field(root, "submitter");
    if (argv == NULL || read_texts(argv, "argv", STRING_BYTES, err) < 0 || argv->child == NULL ||
        argv->child->valuestring[0] == '\0')
        return err != NULL && err->code != 0
                   ? err->code
                   : mu_err_set(err, -EINVAL, "'argv' is missing or empty: what is to be run?");
    if (argv->child->valuestring[0] == '-') /* It would be taken for a flag of the agent. */
        return mu_err_set(err, -EINVAL,
                          "'argv' begins with a '-': the program comes first, and flags of the "
                          "agent are 'agent_args'");
    if (cwd != NULL) {
        const char *text = text_of(cwd, "cwd", PATH_BYTES, err);
        if (text == NULL)
            return -EINVAL;
        if (text[0] != '/')
            return mu_err_set(err, -EINVAL, "'cwd' is not an absolute path");
    }
    if (env != NULL && check_env(env, err) < 0)
        return -EINVAL;
    if (who != NULL && text_of(who, "submitter", SUBMITTER_BYTES, err) == NULL)
        return -EINVAL;
    if (args == NULL)
        return 0;
    if (read_texts(args, "agent_args", 1024, err) < 0)
        return -EINVAL;
    for (const cJSON *e = args->child; e != NULL; e = e->next)
        if (check_agent_arg(e->valuestring, err) < 0)
            return -EINVAL;
    return 0;
}

/* --- and out --- */

static void put_texts(struct mu_json *w, const char *key, const cJSON *list)
{
    mu_json_key(w, key);
    mu_json_open(w, '[');
    for (const cJSON *e = list != NULL ? list->child : NULL; e != NULL; e = e->next)
        mu_json_str(w, e->valuestring);
    mu_json_close(w, ']');
}

static void put_known(struct mu_json *w, const char *key, const cJSON *text)
{
    if (text != NULL)
        mu_json_kstr(w, key, text->valuestring);
}

static int write_spec(const cJSON *root, struct submission *s, struct mu_err *err)
{
    struct mu_json w;
    char nnodes[32];
    const cJSON *env = field(root, "env");
    mu_json_init(&w, &s->spec);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "name", s->name);
    put_texts(&w, "argv", field(root, "argv"));
    put_known(&w, "cwd", field(root, "cwd"));
    (void)snprintf(nnodes, sizeof nnodes, s->nodes_min == s->nodes_max ? "%u" : "%u:%u",
                   s->nodes_min, s->nodes_max);
    mu_json_kstr(&w, "nnodes", nnodes);
    mu_json_ki64(&w, "nproc_per_node", s->nproc);
    if (s->gpus >= 0)
        mu_json_ki64(&w, "gpus_per_node", s->gpus);
    put_texts(&w, "agent_args", field(root, "agent_args"));
    put_known(&w, "submitter", field(root, "submitter"));
    mu_json_key(&w, "env"); /* The last one: see SUBMISSION_ENV. */
    mu_json_open(&w, '{');
    for (const cJSON *e = env != NULL ? env->child : NULL; e != NULL; e = e->next)
        mu_json_kstr(&w, e->string, e->valuestring);
    mu_json_close(&w, '}');
    mu_json_close(&w, '}');
    if (s->spec.oom)
        return mu_err_set(err, -ENOMEM,
                          "the server has no memory for another job: try again later");
    if (s->spec.n >= CTL_SPEC_BYTES)
        return mu_err_set(err, -EINVAL, "the submission takes %zu bytes: at most %d are allowed",
                          s->spec.n, CTL_SPEC_BYTES - 1);
    return 0;
}

static int read_all(const cJSON *root, struct submission *ret, struct mu_err *err)
{
    static const char *const known[] = {"argv",           "cwd",           "env",    "nnodes",
                                        "nproc_per_node", "gpus_per_node", "name",   "id",
                                        "agent_args",     "submitter",     "requeue"};
    int64_t nproc = 1;
    int64_t gpus = -1;
    int r = check_fields(root, known, MU_COUNT(known), err);
    if (r == 0)
        r = check_texts(root, err);
    if (r == 0)
        r = read_nnodes(field(root, "nnodes"), ret, err);
    if (r == 0)
        r = whole(field(root, "nproc_per_node"), "nproc_per_node", 1, MU_WORKERS_MAX, &nproc, err);
    if (r == 0)
        r = whole(field(root, "gpus_per_node"), "gpus_per_node", 0, MU_WORKERS_MAX, &gpus, err);
    if (r == 0)
        r = read_name(root, field(root, "argv"), ret, err);
    const cJSON *requeue = field(root, "requeue");
    if (r == 0 && requeue != NULL && !cJSON_IsBool(requeue))
        r = mu_err_set(err, -EINVAL, "'requeue' is neither true nor false");
    ret->no_requeue = cJSON_IsFalse(requeue);
    ret->nproc = (uint32_t)nproc;
    ret->gpus = (int32_t)gpus;
    return r == 0 ? write_spec(root, ret, err) : r;
}

int submission_read(struct mu_str body, struct submission *ret, struct mu_err *err)
{
    *ret = (struct submission){0};
    mu_buf_init(&ret->spec, mu_mem_default());
    cJSON *root = parse(body, err);
    if (root == NULL)
        return -EINVAL;
    int r = read_all(root, ret, err);
    cJSON_Delete(root);
    return r;
}

size_t submission_public_bytes(const char *spec, size_t bytes)
{
    static const char mark[] = SUBMISSION_ENV;
    for (size_t i = bytes; i-- > 0;)
        if (bytes - i >= sizeof mark - 1 && memcmp(spec + i, mark, sizeof mark - 1) == 0)
            return i;
    return bytes - 1;
}

void submission_fini(struct submission *s)
{
    mu_buf_fini(&s->spec);
}

int submission_read_stop(struct mu_str body,
                         int32_t *ret_signo,
                         int64_t *ret_grace_ms,
                         struct mu_err *err)
{
    static const char *const known[] = {"signal", "grace_s"};
    static const struct {
        const char *name;
        int32_t signo;
    } signals[] = {{"SIGTERM", SIGTERM}, {"SIGINT", SIGINT}, {"SIGKILL", SIGKILL}};
    *ret_signo = SIGTERM;
    *ret_grace_ms = MU_GRACE_NS / 1000000;
    if (body.n == 0)
        return 0;
    cJSON *root = parse(body, err);
    if (root == NULL)
        return -EINVAL;
    int r = check_fields(root, known, MU_COUNT(known), err);
    const cJSON *signal = field(root, "signal");
    const cJSON *grace = field(root, "grace_s");
    double seconds = grace == NULL ? 30 : cJSON_IsNumber(grace) ? grace->valuedouble : -1;
    size_t i = 0;
    while (r == 0 && signal != NULL && i < MU_COUNT(signals) &&
           !(cJSON_IsString(signal) && strcmp(signal->valuestring, signals[i].name) == 0))
        i++;
    if (i == MU_COUNT(signals))
        r = mu_err_set(err, -EINVAL, "'signal' is none of SIGTERM, SIGINT, SIGKILL");
    else if (r == 0 && !(seconds >= 0 && seconds <= 86400))
        r = mu_err_set(err, -EINVAL, "'grace_s' is not a number of seconds from 0 to 86400");
    if (r == 0) {
        *ret_signo = signals[i].signo;
        *ret_grace_ms = (int64_t)(seconds * 1000);
    }
    cJSON_Delete(root);
    return r;
}
