/* A node's part in the examination of many: as a worker of a job, on the workers' store. */
#ifndef MUSTER_LAUNCHER_DOCTOR_PART_H
#define MUSTER_LAUNCHER_DOCTOR_PART_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <muster/muster.h>

#include "base/err.h"
#include "launcher/doctor/judge.h"

struct part_ask {
    int64_t limit_ns; /* Of each look at something that may not answer. */
    bool quick;       /* Links are not measured. */
    cJSON *facts;     /* Of this machine. */
    const volatile bool *stop;
};

struct part_result {
    uint32_t count;
    cJSON **nodes; /* As in struct doc_case. */
    cJSON **looks;
    char **stage;
};

/* Meet, look at each other, and on rank 0 gather what all saw, which is then in *ret. On the others
 * ret->count is 0. Returns 0, or a negative errno with a sentence; what was gathered by then stays
 * in *ret. part_result_fini() in any case. */
int part_take(muster *m, const struct part_ask *ask, struct part_result *ret, struct mu_err *err);
void part_result_fini(struct part_result *r);

#endif
