/* Where failures begin again and again: a host is set aside when so many rounds of this job in a
 * window of time ended with a failure that began there, and on no other host as many, since else it
 * is the program. It is set aside only while the job has nodes enough without it, and counted on
 * again when its failures have left the window or are forgiven. A host is one boot of it: a new
 * agent there changes nothing. */
#include "rendezvous/job/internal.h"

#include <stdio.h>
#include <string.h>

static bool is_on(const struct job *j)
{
    return j->config.quarantine_failures > 0 && j->config.quarantine_window_ns > 0;
}

static bool is_here(const struct job_blamed *b, const char *host, const char *boot_id)
{
    return strcmp(b->host, host) == 0 && strcmp(b->boot_id, boot_id) == 0;
}

static bool counts(const struct job *j, const struct job_blamed *b, int64_t unix_ms)
{
    return unix_ms - b->at_unix_ms < j->config.quarantine_window_ns / NS_PER_MS;
}

static uint32_t count_of(const struct job *j, const char *host, const char *boot_id)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->blamed_count; i++)
        n += counts(j, &j->blamed[i], j->step_unix_ms) && is_here(&j->blamed[i], host, boot_id);
    return n;
}

const struct job_blamed *
job_next_blamed(const struct job *j, const struct job_node *n, int64_t unix_ms, uint32_t *at)
{
    while (*at < j->blamed_count) {
        const struct job_blamed *b = &j->blamed[(*at)++];
        if (counts(j, b, unix_ms) && is_here(b, n->hello.host, n->hello.boot_id))
            return b;
    }
    return NULL;
}

/* The host that fails, and no other as often; NULL: none. */
static const struct job_blamed *find_suspect(const struct job *j)
{
    const struct job_blamed *most = NULL;
    uint32_t most_count = 0;
    bool shared = false;
    if (!is_on(j) || j->blamed_count < j->config.quarantine_failures)
        return NULL;
    for (uint32_t i = 0; i < j->blamed_count; i++) {
        const struct job_blamed *b = &j->blamed[i];
        uint32_t n = count_of(j, b->host, b->boot_id);
        if (n > most_count) {
            most = b;
            most_count = n;
            shared = false;
        } else if (n == most_count && most != NULL && !is_here(b, most->host, most->boot_id)) {
            shared = true;
        }
    }
    return most_count >= j->config.quarantine_failures && !shared ? most : NULL;
}

bool quarantine_suspects(const struct job *j, const struct job_node *n)
{
    const struct job_blamed *b = find_suspect(j);
    return b != NULL && is_here(b, n->hello.host, n->hello.boot_id);
}

void quarantine_apply(struct job *j)
{
    const struct job_blamed *b = find_suspect(j);
    uint32_t others = 0;
    if (b == NULL && j->aside_count == 0)
        return;
    for (uint32_t i = 0; i < j->node_cap; i++) {
        if (!j->nodes[i].used)
            continue;
        roster_aside(j, i, false);
        const struct job_hello *h = &j->nodes[i].hello;
        others += roster_eligible(&j->nodes[i]) && (b == NULL || !is_here(b, h->host, h->boot_id));
    }
    if (b == NULL || others < j->nodes_min)
        return;
    for (uint32_t i = 0; i < j->node_cap; i++) {
        const struct job_hello *h = &j->nodes[i].hello;
        if (j->nodes[i].used && is_here(b, h->host, h->boot_id))
            roster_aside(j, i, true);
    }
}

static void add(struct job *j,
                const struct mu_cause *c,
                const char *boot_id,
                uint32_t round,
                int64_t at_unix_ms)
{
    struct mu_buf sentence;
    if (j->blamed == NULL)
        j->blamed = mu_alloc(j->mem, JOB_BLAMED_MAX * sizeof *j->blamed);
    if (j->blamed == NULL)
        return; /* It is not remembered. */
    if (j->blamed_count == JOB_BLAMED_MAX) {
        j->blamed_count--;
        memmove(j->blamed, j->blamed + 1, j->blamed_count * sizeof *j->blamed);
    }
    struct job_blamed *b = &j->blamed[j->blamed_count++];
    *b = (struct job_blamed){.round = round, .at_unix_ms = at_unix_ms};
    memcpy(b->host, c->host, sizeof b->host);
    (void)mu_strcopy(b->boot_id, sizeof b->boot_id, boot_id); /* It fits. */
    mu_buf_init(&sentence, j->mem);
    mu_cause_sentence(c, &sentence);
    (void)snprintf(b->sentence, sizeof b->sentence, "%s",
                   mu_buf_cstr(&sentence)); /* A cut sentence is still one. */
    mu_buf_fini(&sentence);
}

/* It tells of a node's own failure: neither of its going, nor of another rank's end. */
static bool is_own(const struct mu_cause *c)
{
    return mu_cause_costs_restart(c->kind) && c->blame < 0 && c->host[0] != '\0';
}

void quarantine_note(struct job *j)
{
    const struct mu_cause *c = &j->cause;
    if (!is_on(j) || !j->has_cause || c->round != j->round || !is_own(c) || c->node_rank < 0 ||
        (uint32_t)c->node_rank >= j->round_nodes || j->members[c->node_rank] == JOB_NO_NODE)
        return;
    const struct job_node *n = &j->nodes[j->members[c->node_rank]];
    struct mu_cause of_node = *c; /* The worker's agent may call its host what it likes. */
    (void)mu_strcopy(of_node.host, sizeof of_node.host, n->hello.host); /* It fits. */
    add(j, &of_node, n->hello.boot_id, j->round, j->step_unix_ms);
}

void quarantine_load(struct job *j, const struct job_incident *in)
{
    struct mu_cause c;
    job_incident_cause(in, &c);
    bool forgiven =
        in->stopped_unix_ms <= j->forgiven_unix_ms && strcmp(c.host, j->forgiven_host) == 0;
    if (is_on(j) && in->stopped_unix_ms > 0 && is_own(&c) && !forgiven) /* Else it comes. */
        add(j, &c, in->boot_id, (uint32_t)in->round, in->stopped_unix_ms);
}

void quarantine_forgive(struct job *j, const char *host)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < j->blamed_count; i++)
        if (strcmp(j->blamed[i].host, host) != 0)
            j->blamed[left++] = j->blamed[i];
    if (left == j->blamed_count)
        return;
    j->blamed_count = left;
    j->forgiven_unix_ms = j->step_unix_ms;
    (void)mu_strcopy(j->forgiven_host, sizeof j->forgiven_host, host); /* It fits. */
    if (j->round > 0)
        job_keep(j);
}

void quarantine_forget_all(struct job *j)
{
    j->blamed_count = 0;
}
