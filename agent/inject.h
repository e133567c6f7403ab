/* Carries out what agent/chaos decides, on this agent's own workers, connection and log folder.
 * Each fault is a line on stderr that begins with "chaos: " behind the program's name, and a log
 * line, so that nobody looks for the cause. Without rules every call does nothing. */
#ifndef MUSTER_AGENT_INJECT_H
#define MUSTER_AGENT_INJECT_H

#include <uv.h>

#include "agent/chaos.h"
#include "agent/link/link.h"
#include "agent/workers/work.h"
#include "base/ctl.h"

struct inject {
    const struct chaos_rules *rules;
    struct chaos chaos;
    uv_timer_t timer; /* Does not keep the loop alive. */
    const struct work *work;
    struct link *link;
    const char *log_dir;
    int32_t pids[MU_WORKERS_MAX];
    uint32_t rank_base;
    int disk_fd; /* The file that fills the disk; -1: none. */
    void (*say)(void *arg, const char *text);
    void *arg;
};

/* `rules` and `log_dir` (NULL: none) are borrowed. Says what is on. */
void inject_init(struct inject *j,
                 uv_loop_t *loop,
                 const struct chaos_rules *rules,
                 const char *log_dir,
                 void (*say)(void *arg, const char *text),
                 void *arg);
void inject_use(struct inject *j, const struct work *work, struct link *link);
void inject_started(struct inject *j, const struct ctl_start *s, const int32_t *pids, uint32_t n);
void inject_step(struct inject *j, uint32_t local_rank, int64_t step);
void inject_ended(struct inject *j);
void inject_close(struct inject *j);

#endif
