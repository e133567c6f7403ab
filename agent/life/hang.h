/* Which worker of a node hangs: alive, and nothing comes of it. Pure: the shell looks at processes
 * and hears reports, this decides.
 *
 * A worker gives signs of life: a step that it reports, CPU time that it or its descendants use,
 * output that passes through the agent. Silence is told, always; it ends the round only where the
 * user has set a limit:
 *  - progress: a worker that has reported a step must report the next in time. While it says that
 * it is in a section with a limit of its own, that one counts, from the section's beginning. The
 * limit may be learned: some times the longest that any worker here has taken for a step so far.
 *  - silence: any worker must give some sign of life in time.
 * One that hangs makes its peers wait, and they are as silent as it is. Who is to blame is told by,
 * in this order: being stopped (state T), the fewest steps, the longest silence.
 *
 * Everything but what was learned is forgotten when a round begins. */
#ifndef MUSTER_AGENT_HANG_H
#define MUSTER_AGENT_HANG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

#define HANG_NOTICE_NS                                                                             \
    INT64_C(5000000000) /* A loaded machine may keep one waiting for seconds.                      \
                         */

#define HANG_LEARNED INT64_C(-1)
#define HANG_LEARNED_TIMES 10
#define HANG_LEARNED_MIN_NS INT64_C(60000000000)
#define HANG_LEARNED_AFTER                                                                         \
    3 /* Steps that were seen to take their time; before, no limit holds.                          \
       */

struct hang_limits {
    int64_t progress_ns; /* 0: no limit. HANG_LEARNED. */
    int64_t silence_ns;  /* 0: no limit. */
};

/* What is seen of a worker at one moment. Times are monotonic. */
struct hang_sample {
    bool stopped;       /* By a signal or a debugger: state T or t. */
    uint64_t cpu;       /* Time it has used, in any unit. */
    uint64_t cpu_below; /* Of its descendants, where it was looked at: when `cpu` stands still. */
    uint64_t written;   /* Bytes of output that passed through us. */
    bool has_step;
    int64_t step;
    int64_t step_ns;
    bool in_section;
    int64_t
        section_since_ns; /* Of the section, or when the last one was left; 0: there was none. */
    int64_t section_limit_ns; /* Negative: none of its own. */
};

struct hang_worker {
    bool there; /* A sample came, and it has not ended since. */
    struct hang_sample last;
    int64_t alive_ns; /* Its last sign of life. */
};

struct hang {
    const struct mu_mem *mem;
    struct hang_limits limits;
    int64_t longest_step_ns; /* Of any worker, in any round. */
    uint32_t steps_seen;     /* Up to HANG_LEARNED_AFTER. */
    uint32_t count;
    struct hang_worker *workers;
};

struct hang_verdict {
    uint32_t local_rank;
    bool by_progress; /* Else by silence. */
    int64_t since_ns; /* Its last step, the section's beginning, or its last sign of life. */
    int64_t limit_ns; /* That was passed. */
    bool has_step;
    int64_t step;
    bool stopped;
    bool in_section;
};

/* Returns 0 or -ENOMEM. */
int hang_init(struct hang *h,
              const struct mu_mem *mem,
              const struct hang_limits *limits,
              uint32_t count);
void hang_fini(struct hang *h);

/* A round's workers were started. */
void hang_begin(struct hang *h, int64_t now_ns);
void hang_ended(struct hang *h, uint32_t local_rank);
/* The first sample of a round counts as a sign of life. */
void hang_note(struct hang *h, uint32_t local_rank, int64_t now_ns, const struct hang_sample *s);

/* Must the round end? True with whom to blame. */
bool hang_look(const struct hang *h, int64_t now_ns, struct hang_verdict *ret);
/* Since when it has given no sign of life; 0: it has, lately. */
int64_t hang_silent_since(const struct hang *h, uint32_t local_rank, int64_t now_ns);
/* How often to look: often enough for the limits, seldom enough to cost nothing. */
int64_t hang_gap_ns(const struct hang *h);

#endif
