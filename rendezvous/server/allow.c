/* Who may do what: the one place that decides. A row for each thing that can be done at one of the
 * three listeners of the port, with who may do it where the server has a token and where it has
 * none; docs/guides/security.md prints it. Over HTTP a request that changes something must not come
 * from the page of another site either, nor, where being on this very machine is all that is asked,
 * under a name that such a page leads to 127.0.0.1 (DNS rebinding). */
#include <string.h>
#include <strings.h>

#include "base/addr.h"
#include "rendezvous/server/describe.h"
#include "rendezvous/server/internal.h"

enum listener {
    CONTROL,
    STORE,
    HTTP
};

enum role {
    ANYONE, /* Who reaches the port. */
    LOCAL,  /* A process on the server's own machine. */
    HOLDER  /* Who has the token. */
};

enum option {
    NO_OPTION,
    OPEN_STORE, /* --open-store */
    READ_TOKEN  /* --read=token */
};

struct rule {
    enum listener listener;
    enum role bare;     /* The server has no token. */
    enum role token;    /* It has one. */
    enum option option; /* And with this option: */
    enum role optional;
    const char *what; /* HTTP: the paths are the rows of routes.c with this deed. */
};

/* clang-format off */
static const struct rule rules[SRV_DEED_COUNT] = {
    [SRV_JOINS]   = {CONTROL, ANYONE, HOLDER, NO_OPTION,  HOLDER, "`hello`: a node joins a job, and may drain itself"},
    [SRV_OFFERS]  = {CONTROL, LOCAL,  HOLDER, NO_OPTION,  HOLDER, "`offer`: a node offers to run what the server says"},
    [SRV_STORES]  = {STORE,   ANYONE, LOCAL,  OPEN_STORE, ANYONE, "every command of the TCPStore protocol"},
    [SRV_LIVES]   = {HTTP,    ANYONE, ANYONE, NO_OPTION,  ANYONE, NULL},
    [SRV_READS]   = {HTTP,    ANYONE, ANYONE, READ_TOKEN, HOLDER, NULL},
    [SRV_READS_OUTPUT] = {HTTP, LOCAL, HOLDER, NO_OPTION, HOLDER, NULL},
    [SRV_LOOKS]   = {HTTP,    LOCAL,  HOLDER, NO_OPTION,  HOLDER, NULL},
    [SRV_CHANGES] = {HTTP,    LOCAL,  HOLDER, NO_OPTION,  HOLDER, NULL},
};
/* clang-format on */

static bool is_on(const struct srv *s, enum option o)
{
    switch (o) {
    case NO_OPTION:
        return false;
    case OPEN_STORE:
        return s->config.open_store;
    case READ_TOKEN:
        return s->config.read_needs_token;
    }
    return false;
}

static enum role role_of(const struct srv *s, enum srv_deed deed)
{
    const struct rule *r = &rules[deed];
    return !srv_has_token(s) ? r->bare : is_on(s, r->option) ? r->optional : r->token;
}

const char *srv_denies(const struct srv *s, enum srv_deed deed, struct srv_caller who)
{
    bool http = rules[deed].listener == HTTP;
    switch (role_of(s, deed)) {
    case ANYONE:
        return NULL;
    case LOCAL:
        if (who.local)
            return NULL;
        return deed == SRV_STORES ? "where the server has a token its store takes only clients on "
                                    "its own machine: "
                                    "start it with --open-store to let others in"
               : deed == SRV_OFFERS
                   ? "without a token only nodes on the server's own machine may offer themselves: "
                     "give the server and the node one (muster token new, --token-file)"
                   : "only a process on the server's own machine may ask this: run muster there, "
                     "or "
                     "give both a token (muster token new, --token-file)";
    case HOLDER:
        if (who.proven)
            return NULL;
        return http ? "this needs the token: muster --token-file=FILE with a copy of the server's, "
                      "or the field Authorization: Bearer TOKEN"
                    : "this server takes only who proves its token: start the agent with "
                      "--token-file=FILE, a copy of the server's";
    }
    return "not known";
}

bool srv_is_local(const struct in6_addr *a)
{
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

const char *srv_denies_agent(const struct agent *a, enum srv_deed deed)
{
    struct srv_caller who = {.local = srv_is_local(&a->conn->addr), .proven = a->proven};
    return srv_denies(a->conn->srv, deed, who);
}

/* --- HTTP --- */

/* "localhost:29500", "127.0.0.1", "[::1]:8080" */
static bool is_loopback_name(const char *host)
{
    char name[MU_ADDR_BYTES];
    bool v6 = host[0] == '[';
    size_t n = v6 ? strcspn(++host, "]") : strcspn(host, ":");
    const char *rest = v6 ? host + n + (host[n] == ']') : host + n;
    bool has_port = rest[0] == ':' && strspn(rest + 1, "0123456789") == strlen(rest + 1);
    if (n == 0 || n >= sizeof name || (v6 && host[n] != ']') || (rest[0] != '\0' && !has_port))
        return false;
    memcpy(name, host, n);
    name[n] = '\0';
    struct mu_addr numeric;
    return strcasecmp(name, "localhost") == 0 ||
           (mu_addr_parse(name, 0, &numeric) == 0 && mu_addr_is_loopback(name));
}

/* A browser names the site of the page that asks; ours is the host that is asked. */
static bool is_own_page(const struct srv_http_request *q)
{
    static const char scheme[] = "http://";
    size_t n = sizeof scheme - 1;
    return q->origin[0] == '\0' ||
           (strncasecmp(q->origin, scheme, n) == 0 && strcasecmp(q->origin + n, q->host) == 0);
}

static bool has_bearer(const struct srv *s, const struct srv_http_request *q)
{
    static const char scheme[] = "Bearer ";
    size_t n = sizeof scheme - 1;
    if (strncasecmp(q->authorization, scheme, n) != 0)
        return false;
    const char *said = q->authorization + n;
    return mu_token_is(&s->prover.token, said, strlen(said));
}

static unsigned forbid(const struct srv *s,
                       const struct srv_http_request *q,
                       enum srv_deed deed,
                       const char **ret_why)
{
    bool only_reads = deed == SRV_READS || deed == SRV_LIVES;
    struct srv_caller who = {.local = mu_addr_is_loopback(q->peer), .proven = has_bearer(s, q)};
    if (!only_reads && !is_own_page(q)) {
        *ret_why =
            "a page of another site may not ask this: the Origin field must name this server";
        return 403;
    }
    *ret_why = srv_denies(s, deed, who);
    if (*ret_why != NULL && !srv_has_token(s))
        return 403;
    if (*ret_why != NULL && q->authorization[0] != '\0')
        *ret_why = "the Authorization field has not this server's token: copy the server's token "
                   "file here anew";
    if (*ret_why != NULL)
        return 401;
    if (role_of(s, deed) == LOCAL && !is_loopback_name(q->host)) {
        *ret_why = "the Host field must name this machine (localhost, 127.0.0.1 or [::1])";
        return 403;
    }
    return 0;
}

unsigned srv_forbids(struct srv *s,
                     const struct srv_http_request *q,
                     enum srv_deed deed,
                     const char **ret_why)
{
    unsigned status = forbid(s, q, deed, ret_why);
    uint32_t left_out = 0;
    char shown[80];
    /* muster says the token only once it is asked for it. */
    bool asks = status == 401 && q->authorization[0] == '\0' && deed == SRV_READS;
    enum mu_log_level level = asks ? MU_DEBUG : MU_WARN;
    if (status != 0 && mu_log_on(level) &&
        mu_log_allowed(&s->log_refused, s->now_ns, SRV_LOG_BURST, &left_out))
        mu_log(level, "http.refused", "peer=%s method=%s path=%s status=%u left_out=%u", q->peer,
               q->method, mu_quote(shown, sizeof shown, mu_str_of(q->path, strlen(q->path))),
               status, left_out);
    return status;
}

/* --- the table for people --- */

static const char *const listeners[] = {[CONTROL] = "control", [STORE] = "store", [HTTP] = "HTTP"};
static const char *const roles[] = {
    [ANYONE] = "anyone", [LOCAL] = "this machine", [HOLDER] = "the token"};
static const char *const options[] = {
    [NO_OPTION] = "", [OPEN_STORE] = "--open-store", [READ_TOKEN] = "--read=token"};

static void describe_row(struct mu_buf *out, const struct rule *r, const char *what)
{
    (void)mu_buf_addf(out, "| %s | %s | %s | %s", listeners[r->listener], what, roles[r->bare],
                      roles[r->token]);
    if (r->option != NO_OPTION)
        (void)mu_buf_addf(out, "; with `%s`: %s", options[r->option], roles[r->optional]);
    (void)mu_buf_adds(out, " |\n");
}

void srv_allow_describe(struct mu_buf *out)
{
    enum srv_deed deed = SRV_DEED_COUNT;
    char what[96];
    (void)mu_buf_adds(out, "| listener | what | server without a token | server with one |\n"
                           "|---|---|---|---|\n");
    for (size_t i = 0; i < SRV_DEED_COUNT; i++)
        if (rules[i].what != NULL)
            describe_row(out, &rules[i], rules[i].what);
    for (size_t i = 0; routes_text(i, what, sizeof what, &deed); i++)
        describe_row(out, &rules[deed], what);
}
