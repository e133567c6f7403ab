/* What this node sees of another, given what that one said of itself. */
#ifndef MUSTER_LAUNCHER_DOCTOR_LOOK_H
#define MUSTER_LAUNCHER_DOCTOR_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

/* nodes: all, `count` of them, NULL where one said nothing; `peer` is looked at.
 * Adds to `seen`: names, reach, and over the first connection that came about rtt_us, skew_ms and
 * large. `beat` is called between the steps; where it gives false, the rest is left out. */
struct look_ask {
    cJSON *const *nodes;
    uint32_t count;
    uint32_t peer;
    int64_t limit_ns;
    bool (*beat)(void *arg);
    void *arg;
};
void look_at_node(const struct look_ask *ask, cJSON *seen);

#endif
