/* Causes as words; see cause.h. Pure. */
#include "base/cause.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *text;
    bool costs;
} kinds[] = {
#define X(name, text, costs) [MU_CAUSE_##name] = {text, (costs) != 0},
    MU_CAUSE_KINDS(X)
#undef X
};

const char *mu_cause_kind_text(enum mu_cause_kind k)
{
    MU_ASSERT((size_t)k < MU_COUNT(kinds));
    return kinds[k].text;
}

int mu_cause_kind_parse(const char *text, enum mu_cause_kind *ret)
{
    for (size_t i = 0; i < MU_COUNT(kinds); i++) {
        if (strcmp(text, kinds[i].text) == 0) {
            *ret = (enum mu_cause_kind)i;
            return 0;
        }
    }
    return -1;
}

bool mu_cause_costs_restart(enum mu_cause_kind k)
{
    MU_ASSERT((size_t)k < MU_COUNT(kinds));
    return kinds[k].costs;
}

static bool is_workers(const struct mu_cause *c)
{
    return c->kind == MU_CAUSE_WORKER_EXIT || c->kind == MU_CAUSE_WORKER_SIGNAL;
}

static bool is_nodes_end(const struct mu_cause *c)
{
    return c->kind == MU_CAUSE_NODE_LOST || c->kind == MU_CAUSE_NODE_SILENT ||
           c->kind == MU_CAUSE_NODE_LEFT || c->kind == MU_CAUSE_NODE_FAILED;
}

/* Killed, or its code crashed. Not SIGABRT and SIGPIPE: libraries end that way when a peer is gone;
 * nor those by which people ask a process to end. */
static bool is_violent(int signo)
{
    char buf[16];
    static const char *const those[] = {"SIGKILL", "SIGSEGV", "SIGBUS",  "SIGILL",
                                        "SIGFPE",  "SIGSYS",  "SIGXCPU", "SIGXFSZ"};
    const char *name = mu_signal_name(signo, buf);
    for (size_t i = 0; i < MU_COUNT(those); i++)
        if (strcmp(name, those[i]) == 0)
            return true;
    return false;
}

bool mu_cause_is_better(const struct mu_cause *later, const struct mu_cause *first, bool at_once)
{
    if (!is_workers(first))
        return false;
    if (first->blame >= 0 && later->rank == first->blame) {
        bool each_other = first->rank >= 0 && later->blame == first->rank;
        return (is_workers(later) && !each_other) || (is_nodes_end(later) && at_once);
    }
    if (!is_workers(later) || later->blame >= 0)
        return false;
    bool by_signal = later->kind == MU_CAUSE_WORKER_SIGNAL;
    if (first->blame >= 0)
        return by_signal || later->message[0] == '\0';
    return at_once && first->kind == MU_CAUSE_WORKER_EXIT && by_signal && is_violent(later->signo);
}

const char *mu_signal_name(int signo, char *buf)
{
    /* Linux's numbers on x86 and ARM, spelled out: strict ISO C knows only six of them. */
    static const char *const names[] = {
        "0",         "SIGHUP",  "SIGINT",    "SIGQUIT", "SIGILL",   "SIGTRAP", "SIGABRT", "SIGBUS",
        "SIGFPE",    "SIGKILL", "SIGUSR1",   "SIGSEGV", "SIGUSR2",  "SIGPIPE", "SIGALRM", "SIGTERM",
        "SIGSTKFLT", "SIGCHLD", "SIGCONT",   "SIGSTOP", "SIGTSTP",  "SIGTTIN", "SIGTTOU", "SIGURG",
        "SIGXCPU",   "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO",   "SIGPWR",  "SIGSYS"};
    if (signo > 0 && (size_t)signo < MU_COUNT(names))
        return names[signo];
    (void)snprintf(buf, 16, "signal %d", signo);
    return buf;
}

static void who(const struct mu_cause *c, struct mu_buf *b)
{
    if (c->rank >= 0)
        (void)mu_buf_addf(b, "rank %d ", c->rank);
    else
        (void)mu_buf_adds(b, "worker ");
    if (c->local_rank >= 0 && c->pid > 0)
        (void)mu_buf_addf(b, "(local rank %d, pid %d) ", c->local_rank, c->pid);
    else if (c->local_rank >= 0)
        (void)mu_buf_addf(b, "(local rank %d) ", c->local_rank);
    (void)mu_buf_addf(b, "on %s ", c->host[0] != '\0' ? c->host : "an unnamed host");
}

/* The library's own words may tell it already. */
static void where(const struct mu_cause *c, struct mu_buf *b)
{
    if (c->step >= 0 && strstr(c->message, "after step ") == NULL)
        (void)mu_buf_addf(b, " after step %d", c->step);
}

void mu_cause_sentence(const struct mu_cause *c, struct mu_buf *b)
{
    char buf[16];
    const char *host = c->host[0] != '\0' ? c->host : "an unnamed host";
    switch (c->kind) {
    case MU_CAUSE_NONE:
        (void)mu_buf_adds(b, "no cause is known");
        break;
    case MU_CAUSE_WORKER_EXIT:
        who(c, b);
        (void)mu_buf_addf(b, "exited with status %d", c->exit_code);
        where(c, b);
        break;
    case MU_CAUSE_WORKER_SIGNAL:
        who(c, b);
        (void)mu_buf_addf(b, "was ended by %s%s", mu_signal_name(c->signo, buf),
                          c->core_dumped != 0 ? " (core dumped)" : "");
        where(c, b);
        break;
    case MU_CAUSE_SPAWN_FAILED:
        who(c, b);
        (void)mu_buf_adds(b, "could not be started");
        break;
    case MU_CAUSE_NO_PROGRESS:
        who(c, b);
        (void)mu_buf_adds(b, "made no progress");
        break;
    case MU_CAUSE_NODE_LOST:
        (void)mu_buf_addf(b, "the agent on %s died: its connection closed without a goodbye", host);
        break;
    case MU_CAUSE_NODE_SILENT:
        (void)mu_buf_addf(b, "the agent on %s was not heard for its whole lease", host);
        break;
    case MU_CAUSE_NODE_LEFT:
        (void)mu_buf_addf(b, "the agent on %s left", host);
        break;
    case MU_CAUSE_NODE_JOINED:
        (void)mu_buf_addf(b, "a new node arrived: %s", host);
        break;
    case MU_CAUSE_NODE_FAILED:
        (void)mu_buf_addf(b, "the agent on %s cannot go on", host);
        break;
    case MU_CAUSE_JOIN_TIMEOUT:
        (void)mu_buf_adds(b, "too few nodes came in time");
        break;
    case MU_CAUSE_UNREACHED:
        if (c->message[0] == '\0')
            (void)mu_buf_addf(b, "%s cannot reach the node that leads the round", host);
        else
            (void)mu_buf_adds(b, c->message); /* It names both. */
        return;
    case MU_CAUSE_SERVER_LOST:
        (void)mu_buf_adds(b, "the rendezvous server does not answer");
        break;
    case MU_CAUSE_KIND_COUNT:
        break;
    }
    if (c->message[0] != '\0')
        (void)mu_buf_addf(b, ": %s", c->message);
}

void mu_cause_twice_sentence(const struct mu_cause *c, struct mu_buf *b)
{
    char buf[16];
    (void)mu_buf_addf(b, "rank %d ", c->rank);
    if (c->kind == MU_CAUSE_WORKER_EXIT)
        (void)mu_buf_addf(b, "failed with status %d", c->exit_code);
    else if (c->kind == MU_CAUSE_WORKER_SIGNAL)
        (void)mu_buf_addf(b, "was ended by %s", mu_signal_name(c->signo, buf));
    else
        (void)mu_buf_adds(b, "made no progress");
    where(c, b);
    (void)mu_buf_adds(b, " twice: starting again does not help");
}
