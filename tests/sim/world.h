/* A whole cluster in one process, from seeded events: one server with the real job core, agents
 * with the real life core, and between them a network that delays, holds, cuts, and an operating
 * system that starts, kills and freezes. Time is a number; nothing sleeps. Invariants are checked
 * after every step; docs/simulation.md lists them. */
#ifndef MUSTER_TESTS_SIM_WORLD_H
#define MUSTER_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct world_options {
    uint64_t seed;
    FILE *trace; /* The story, line by line; NULL: none. */
};

struct world_result {
    bool ok;
    char what[512]; /* The invariant that broke, and where. */
    uint64_t hash;  /* Of the story: equal for equal seeds, to the byte. */
    uint64_t events;
    uint32_t rounds;
    uint64_t stale;         /* Messages of old rounds that came too late. */
    uint32_t given_back;    /* How often restarts were. */
    uint32_t same_failures; /* That ended their job. */
    uint32_t restarts;      /* Of servers. */
    uint32_t succeeded;     /* Jobs. */
    uint32_t failed;
};

void world_run(const struct world_options *o, struct world_result *ret);

#endif
