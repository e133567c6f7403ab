/* Which rendezvous is meant, and its settings (--rdzv-conf). torchrun's words all lead to our own
 * rendezvous: standalone, static and c10d differ in where it is and in how many nodes it wants. */
#include <errno.h>
#include <string.h>

#include "agent/options_table.h"
#include "base/addr.h"
#include "base/words.h"

#define NS_PER_S INT64_C(1000000000)
#define YEAR_NS (INT64_C(366) * 86400 * NS_PER_S)
#define STATIC_TIMEOUT_NS (900 * NS_PER_S) /* What torchrun puts in. */
#define OWN_PORT 29500
#define C10D_PORT 29400

/* --- rdzv-conf --- */

enum conf_kind {
    CONF_IGNORED, /* torchrun knows it; it has no meaning here. */
    CONF_SECONDS, /* Greater than 0. */
    CONF_HOST,
    CONF_STORE,
    CONF_CLASH /* torchrun crashes on it. */
};

struct conf_row {
    const char *key;
    enum conf_kind kind;
};

/* clang-format off */
static const struct conf_row conf_rows[] = {
    {"join_timeout", CONF_SECONDS},  {"last_call_timeout", CONF_SECONDS}, {"read_timeout", CONF_SECONDS},
    {"timeout", CONF_SECONDS},       {"close_timeout", CONF_SECONDS},     {"heartbeat_timeout", CONF_SECONDS},
    {"is_host", CONF_HOST},          {"store_type", CONF_STORE},
    {"heartbeat", CONF_IGNORED},     {"keep_alive_interval", CONF_IGNORED},
    {"keep_alive_max_attempt", CONF_IGNORED}, {"rank", CONF_IGNORED},     {"use_libuv", CONF_IGNORED},
    {"protocol", CONF_IGNORED},      {"ssl_cert", CONF_IGNORED},          {"ssl_cert_key", CONF_IGNORED},
    {"ca_cert", CONF_IGNORED},       {"cert", CONF_IGNORED},              {"key", CONF_IGNORED},
    {"cacert", CONF_IGNORED},        {"etcd_prefix", CONF_IGNORED},
    {"backend", CONF_CLASH},         {"endpoint", CONF_CLASH},            {"run_id", CONF_CLASH},
    {"min_nodes", CONF_CLASH},       {"max_nodes", CONF_CLASH},           {"local_addr", CONF_CLASH},
};
/* clang-format on */

struct conf {
    int64_t join_timeout_ns; /* 0: not given; as the others. */
    int64_t last_call_ns;
    int64_t read_timeout_ns;
    int64_t timeout_ns;
};

static int conf_unknown(struct reading *rd, const char *key)
{
    const char *names[MU_COUNT(conf_rows)];
    char shown[64];
    for (size_t i = 0; i < MU_COUNT(conf_rows); i++)
        names[i] = conf_rows[i].key;
    (void)mu_quote(shown, sizeof shown, mu_str_of(key, strlen(key)));
    const char *near = mu_nearest(key, names, MU_COUNT(names));
    if (near != NULL)
        option_note(rd, "--rdzv-conf: the key %s is not known and has no effect: did you mean %s?",
                    shown, near);
    else
        option_note(rd, "--rdzv-conf: the key %s is not known and has no effect", shown);
    return 0;
}

static int conf_bool(struct reading *rd, const char *value)
{
    static const char *const words[2][5] = {{"0", "false", "f", "no", "n"},
                                            {"1", "true", "t", "yes", "y"}};
    char shown[48];
    char low[8] = "";
    for (size_t i = 0; value[i] != '\0' && i < sizeof low - 1; i++)
        low[i] = value[i] >= 'A' && value[i] <= 'Z' ? (char)(value[i] - 'A' + 'a') : value[i];
    for (int v = 0; v < 2; v++) {
        for (size_t i = 0; i < MU_COUNT(words[v]); i++) {
            if (strlen(value) < sizeof low && strcmp(low, words[v][i]) == 0) {
                rd->o->is_host = v;
                return 0;
            }
        }
    }
    return option_fail(rd, 1, "--rdzv-conf: is_host=%s: write 1 or 0, true or false, yes or no",
                       mu_quote(shown, sizeof shown, mu_str_of(value, strlen(value))));
}

static int conf_seconds(struct reading *rd, const char *key, const char *value, struct conf *c)
{
    char what[48] = "--rdzv-conf: ";
    int64_t unused = 0;
    int64_t *to = strcmp(key, "join_timeout") == 0        ? &c->join_timeout_ns
                  : strcmp(key, "last_call_timeout") == 0 ? &c->last_call_ns
                  : strcmp(key, "read_timeout") == 0      ? &c->read_timeout_ns
                  : strcmp(key, "timeout") == 0           ? &c->timeout_ns
                                                          : &unused;
    size_t n = strlen(what);
    memcpy(what + n, key, strlen(key) + 1); /* Of the table: at most 22. */
    /* Beyond torchrun, which wants whole seconds: fractions. */
    int r = mu_parse_seconds(value, NS_PER_S / 1000, YEAR_NS, what, to, rd->err);
    return r < 0 ? option_fail_as(rd, 1) : 0;
}

static int conf_pair(struct reading *rd, const char *key, const char *value, struct conf *c)
{
    const struct conf_row *row = NULL;
    for (size_t i = 0; i < MU_COUNT(conf_rows); i++)
        if (strcmp(conf_rows[i].key, key) == 0)
            row = &conf_rows[i];
    if (row == NULL)
        return conf_unknown(rd, key);
    switch (row->kind) {
    case CONF_IGNORED:
        return 0;
    case CONF_SECONDS:
        return conf_seconds(rd, row->key, value, c);
    case CONF_HOST:
        return conf_bool(rd, value);
    case CONF_STORE:
        if (strcmp(value, "tcp") == 0)
            return 0;
        return option_fail(rd, 1,
                           "--rdzv-conf: store_type=%.16s is not available: agents meet at a "
                           "server, write tcp or leave it out",
                           value);
    case CONF_CLASH:
        break;
    }
    return option_fail(rd, 1, "--rdzv-conf: %s is set by a flag of its own, not here", row->key);
}

/* Copy without the blanks around. False: too long. */
static bool trim(char *dst, size_t cap, const char *p, size_t n)
{
    while (n > 0 && (*p == ' ' || *p == '\t')) {
        p++;
        n--;
    }
    while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\t'))
        n--;
    if (n >= cap)
        return false;
    memcpy(dst, p, n);
    dst[n] = '\0';
    return true;
}

static int read_conf(struct reading *rd, struct conf *c)
{
    for (const char *p = rd->conf; *p != '\0';) {
        char key[64];
        char value[256];
        char shown[64];
        size_t n = strcspn(p, ",");
        const char *eq = memchr(p, '=', n);
        size_t k = eq != NULL ? (size_t)(eq - p) : n;
        bool ok = eq != NULL && trim(key, sizeof key, p, k) && key[0] != '\0' &&
                  trim(value, sizeof value, eq + 1, n - k - 1) && value[0] != '\0';
        if (!ok)
            return option_fail(rd, 1, "--rdzv-conf: %s is not KEY=VALUE",
                               mu_quote(shown, sizeof shown, mu_str_of(p, n)));
        int r = conf_pair(rd, key, value, c);
        if (r < 0)
            return r;
        p += n + (p[n] == ',');
    }
    return 0;
}

/* --- where --- */

static void be_standalone(struct reading *rd)
{
    rd->o->rdzv = AGENT_RDZV_STANDALONE;
    rd->o->endpoint = (struct mu_endpoint){.host = "localhost", .port = 0, .has_port = true};
    rd->o->run_id = NULL;
    rd->o->is_host = 1;
    rd->o->node_rank = -1; /* There is one node. */
}

static int read_endpoint(struct reading *rd, const char *text, int default_port, const char *what)
{
    int r = mu_parse_endpoint(text, default_port, what, &rd->o->endpoint, rd->err);
    if (r < 0)
        return option_fail_as(rd, 1);
    if (mu_addr_is_link_local(rd->o->endpoint.host))
        return option_fail(rd, 1,
                           "%s: %.64s is a link-local address, which other hosts cannot use as it "
                           "is: give a name or a global address",
                           what, rd->o->endpoint.host);
    return 0;
}

static int check_node_rank(struct reading *rd)
{
    const struct agent_options *o = rd->o;
    if (!rd->node_rank_given || (uint32_t)o->node_rank < o->nodes_max)
        return 0;
    return option_fail(rd, 1, "--node-rank: %d is not below the number of nodes, %u", o->node_rank,
                       o->nodes_max);
}

static int be_own(struct reading *rd)
{
    rd->o->rdzv = AGENT_RDZV_DYNAMIC;
    int r = check_node_rank(rd);
    return r < 0 ? r : read_endpoint(rd, rd->rdzv, OWN_PORT, "--rdzv");
}

static int be_c10d(struct reading *rd)
{
    const char *text = rd->endpoint;
    rd->o->rdzv = AGENT_RDZV_DYNAMIC;
    int r = check_node_rank(rd); /* Beyond torchrun, which ignores it here. */
    if (r < 0)
        return r;
    if (rd->text[option_row_of("on-join") - option_rows] == NULL)
        rd->o->on_join_restart = true; /* Who speaks torchrun's words gets its way of growing. */
    if (text == NULL || text[strspn(text, " \t")] == '\0') {
        option_note(rd, "--rdzv-endpoint is not given: agents meet at localhost:%d", C10D_PORT);
        text = "localhost";
    }
    return read_endpoint(rd, text, C10D_PORT, "--rdzv-endpoint");
}

static int be_static(struct reading *rd)
{
    struct agent_options *o = rd->o;
    o->rdzv = AGENT_RDZV_STATIC;
    o->nodes_min = o->nodes_max; /* As torchrun: a static world has MAX nodes. */
    o->join_timeout_ns = STATIC_TIMEOUT_NS;
    o->connect_timeout_ns = STATIC_TIMEOUT_NS;
    if (o->node_rank > 0)
        o->is_host = 0; /* Node 0 is where the others meet, and its worker store is there too. */
    int r = check_node_rank(rd);
    if (r < 0)
        return r;
    if (rd->endpoint != NULL && rd->endpoint[strspn(rd->endpoint, " \t")] != '\0')
        return read_endpoint(rd, rd->endpoint, -1, "--rdzv-endpoint");
    int64_t port = OWN_PORT;
    const char *addr = rd->master_addr != NULL ? rd->master_addr : "127.0.0.1";
    if (rd->master_port != NULL) {
        r = option_int(rd, 2, rd->master_port, 0, 65535, "--master-port", &port);
        if (r < 0)
            return r;
    }
    char shown[64];
    if (addr[0] == '[' || strlen(addr) >= sizeof o->endpoint.host)
        return option_fail(rd, 1, "--master-addr: %s is not a host name or address",
                           mu_quote(shown, sizeof shown, mu_str_of(addr, strlen(addr))));
    /* A host alone, also "::1" in full: as an endpoint in brackets it cannot be misread. */
    char text[sizeof o->endpoint.host + 3] = "[";
    size_t n = strlen(addr);
    memcpy(text + 1, addr, n);
    text[1 + n] = ']';
    text[2 + n] = '\0';
    return read_endpoint(rd, text, (int)port, "--master-addr");
}

static int refuse_backend(struct reading *rd)
{
    char shown[48];
    if (strncmp(rd->backend, "etcd", 4) == 0)
        return option_fail(rd, 1,
                           "--rdzv-backend=%.16s is not used here: start rdzv-server on one "
                           "host and give every node --rdzv=HOST:29500",
                           rd->backend);
    return option_fail(rd, 1, "--rdzv-backend: %s is not one of static, c10d",
                       mu_quote(shown, sizeof shown, mu_str_of(rd->backend, strlen(rd->backend))));
}

static bool from_flag(const struct reading *rd, const char *name)
{
    size_t i = (size_t)(option_row_of(name) - option_rows);
    return rd->text[i] != NULL && !rd->from_env[i];
}

/* --rdzv and torchrun's words for the same thing: a flag beats a variable, two flags contradict. */
static int settle_rdzv(struct reading *rd)
{
    static const char *const rivals[] = {"standalone", "rdzv-endpoint", "rdzv-backend"};
    if (rd->rdzv == NULL)
        return 0;
    for (size_t i = 0; i < MU_COUNT(rivals); i++) {
        if (!from_flag(rd, rivals[i]))
            continue;
        if (from_flag(rd, "rdzv"))
            return option_fail(rd, 2, "--rdzv and --%s both say where to meet: give one of them",
                               rivals[i]);
        rd->rdzv = NULL;
        return 0;
    }
    rd->standalone = false;
    return 0;
}

static int choose(struct reading *rd)
{
    bool has_endpoint = rd->endpoint != NULL && rd->endpoint[0] != '\0';
    int r = settle_rdzv(rd);
    if (r < 0)
        return r;
    if (rd->standalone && rd->o->nodes_min > 1)
        return option_fail(
            rd, 2,
            "--standalone is one node, --nnodes wants at least %u: for several nodes "
            "give each --rdzv=HOST[:PORT] instead",
            rd->o->nodes_min);
    if (rd->standalone) {
        be_standalone(rd);
        return 0;
    }
    if (rd->rdzv != NULL)
        return be_own(rd);
    if (strcmp(rd->backend, "c10d") == 0)
        return be_c10d(rd);
    if (strcmp(rd->backend, "static") != 0)
        return refuse_backend(rd);
    if (!has_endpoint && rd->master_port == NULL && rd->o->nodes_max == 1) {
        be_standalone(rd);
        return 0;
    }
    return be_static(rd);
}

int option_resolve_rdzv(struct reading *rd)
{
    struct agent_options *o = rd->o;
    struct conf c = {0};
    if (rd->run_id != NULL && rd->run_id[0] == '\0') {
        option_note(rd,
                    "--rdzv-id is empty: a fresh one is made, so no other node can meet this one");
        o->run_id = NULL;
    } else if (rd->run_id != NULL) {
        o->run_id = rd->run_id;
    }
    int r = choose(rd);
    if (r == 0)
        r = read_conf(rd, &c);
    if (r < 0)
        return r;
    if (o->rdzv == AGENT_RDZV_STATIC) {
        if (c.timeout_ns > 0)
            o->join_timeout_ns = o->connect_timeout_ns = c.timeout_ns;
        return 0;
    }
    if (c.join_timeout_ns > 0) /* The whole wait, so far as read_timeout does not say more. */
        o->join_timeout_ns = o->connect_timeout_ns = c.join_timeout_ns;
    if (c.last_call_ns > 0)
        o->last_call_ns = c.last_call_ns;
    if (c.read_timeout_ns > 0)
        o->connect_timeout_ns = c.read_timeout_ns;
    return 0;
}
