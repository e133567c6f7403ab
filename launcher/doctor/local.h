/* What this machine is like: gathering, no judging. */
#ifndef MUSTER_LAUNCHER_DOCTOR_LOCAL_H
#define MUSTER_LAUNCHER_DOCTOR_LOCAL_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "base/parse.h"

struct local_ask {
    const struct mu_endpoint *server; /* NULL: none is looked at. */
    bool brief;                       /* Only what an agent that waits wants to know. */
    int64_t limit_ns;                 /* Of each look at something that may not answer. */
    const char *log_dir;              /* NULL: none was named. */
};

/* A new object. */
cJSON *local_facts(const struct local_ask *ask);

/* The parts, each in a file of its own. They add keys to `o`. */
void local_add_limits(cJSON *o, const char *log_dir);
void local_add_gpus(cJSON *o);
void local_add_network(cJSON *o, int64_t limit_ns);
void local_add_server(cJSON *o, const struct mu_endpoint *server, int64_t limit_ns);

/* --- for them --- */

void fact_unknown(cJSON *o, const char *key, const char *fmt, ...) MU_PRINTF(3, 4);
void fact_num(cJSON *o, const char *key, double v);
void fact_text(cJSON *o, const char *key, const char *v);
void fact_bool(cJSON *o, const char *key, bool v);
/* The first line of a file, without its end; 0, or a negative errno. */
int local_read_line(const char *path, char *ret, size_t cap);
/* A number in a file; "max" is -1. */
int local_read_num(const char *path, double *ret);

#endif
