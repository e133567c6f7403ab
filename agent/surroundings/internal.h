/* What the launchers' files share; not for others. */
#ifndef MUSTER_AGENT_SURROUNDINGS_INTERNAL_H
#define MUSTER_AGENT_SURROUNDINGS_INTERNAL_H

#include "agent/surroundings/surroundings.h"

/* Ports that are made of a run id lie here: below those that Linux gives to outgoing connections
 * (32768 on), and beside the usual 29400 and 29500. Told in docs/guides/. */
#define SURROUNDINGS_PORT_FIRST 20000u
#define SURROUNDINGS_PORT_COUNT 8000u

const char *surroundings_env(const struct surroundings_ask *ask, const char *name);

/* A variable that must be a whole number. Returns 0, or -EINVAL with a sentence. */
int surroundings_number(const struct surroundings_ask *ask,
                        const char *name,
                        uint32_t min,
                        uint32_t max,
                        uint32_t *ret,
                        struct mu_err *err);

/* A port that is the same for the same id, and mostly another for another. */
uint16_t surroundings_port(const char *run_id);

/* "PREFIX-ID" as run id; what is no letter, digit, dot, dash or underscore becomes an underscore.
 * An id that is too long is told as a number made of it. */
void surroundings_set_id(struct surroundings *s, const char *prefix, const char *id);

/* One launcher each: is it there, and what does it say? */
typedef bool surroundings_there_fn(const struct surroundings_ask *ask);
typedef int
surroundings_ask_fn(const struct surroundings_ask *ask, struct surroundings *s, struct mu_err *err);

surroundings_there_fn slurm_is_there, openmpi_is_there, pmi_is_there, kubernetes_is_there;
surroundings_ask_fn slurm_ask, openmpi_ask, pmi_ask, kubernetes_ask, hostfile_ask;

#endif
