/* The life of one agent: the table, and the machine that runs it; see life.h. What the rows do is
 * in the other files of this folder. */
#include "agent/life/internal.h"

#include <errno.h>
#include <stdio.h>

struct life_row {
    int to; /* enum life_state + 1; 0: no such event here. */
    life_row_fn *act;
};

/* clang-format off */
#define ROW(to_, fn) { LIFE_##to_ + 1, life_row_##fn }
#define IDLE(to_) { LIFE_##to_ + 1, NULL }
static const struct life_row table[LIFE_STATE_COUNT][LIFE_EV_COUNT] = {
    [LIFE_JOINING] = {
        [LIFE_EV_LINK_UP]      = ROW(JOINING,  greet),
        [LIFE_EV_LINK_LOST]    = ROW(JOINING,  link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(JOINING,  link_failed),
        [LIFE_EV_WELCOME]      = ROW(JOINING,  welcome),
        [LIFE_EV_REFUSED]      = ROW(JOINING,  refused),
        [LIFE_EV_WAITING]      = ROW(JOINING,  waiting),
        [LIFE_EV_START]        = ROW(CHECKING, start),
        [LIFE_EV_GO]           = IDLE(JOINING),          /* Of a round that is over. */
        [LIFE_EV_HALT]         = ROW(JOINING,  halt_idle),
        [LIFE_EV_STOP]         = ROW(JOINING,  stop_other_round), /* Of a round that is gone here: say so. */
        [LIFE_EV_END]          = ROW(JOINING,  end_here),
        [LIFE_EV_BEAT]         = ROW(JOINING,  beat_answered),
        [LIFE_EV_REACHED]      = IDLE(JOINING),          /* Too late: the round is over. */
        [LIFE_EV_UNREACHED]    = IDLE(JOINING),
        [LIFE_EV_CHECKED]      = ROW(JOINING,  health_known),
        [LIFE_EV_SIGNAL]       = ROW(JOINING,  signal_idle),
        [LIFE_EV_DRAIN]        = ROW(JOINING,  drain_idle),
        [LIFE_EV_OWNER_GONE]   = ROW(JOINING,  signal_idle),
        [LIFE_EV_DEADLINE]     = ROW(JOINING,  joining_deadline),
        [LIFE_EV_GONE_FINAL]   = ROW(ENDING,   wait_for_last_word),
        [LIFE_EV_QUIT]         = ROW(EXITED,   quit),
    },
    [LIFE_CHECKING] = {
        [LIFE_EV_LINK_UP]      = ROW(CHECKING, greet),
        [LIFE_EV_LINK_LOST]    = ROW(CHECKING, link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(CHECKING, link_failed),
        [LIFE_EV_WELCOME]      = ROW(CHECKING, welcome),
        [LIFE_EV_REFUSED]      = ROW(CHECKING, refused),
        [LIFE_EV_WAITING]      = ROW(CHECKING, waiting),
        [LIFE_EV_START]        = ROW(CHECKING, start_again),
        [LIFE_EV_GO]           = ROW(CHECKING, go_told),
        [LIFE_EV_HALT]         = ROW(CHECKING, halt_idle),
        [LIFE_EV_STOP]         = ROW(CHECKING, stop_told),
        [LIFE_EV_END]          = ROW(CHECKING, end_here),
        [LIFE_EV_BEAT]         = ROW(CHECKING, beat_answered),
        [LIFE_EV_REACHED]      = ROW(CHECKING, reached_lead),
        [LIFE_EV_UNREACHED]    = ROW(CHECKING, unreached_lead),
        [LIFE_EV_CHECKED]      = IDLE(CHECKING),          /* A server that does not know of checks began the round. */
        [LIFE_EV_SIGNAL]       = ROW(CHECKING, signal_idle),
        [LIFE_EV_DRAIN]        = ROW(CHECKING, drain_idle),
        [LIFE_EV_OWNER_GONE]   = ROW(CHECKING, signal_idle),
        [LIFE_EV_DEADLINE]     = ROW(CHECKING, checking_deadline),
        [LIFE_EV_CLEARED]      = ROW(RUNNING,  start_workers),
        [LIFE_EV_BROKEN]       = ROW(STOPPING, stop_workers),
        [LIFE_EV_QUIT]         = ROW(EXITED,   quit),
    },
    [LIFE_RUNNING] = {
        [LIFE_EV_LINK_UP]      = ROW(RUNNING,  greet),
        [LIFE_EV_LINK_LOST]    = ROW(RUNNING,  link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(RUNNING,  link_failed),
        [LIFE_EV_WELCOME]      = ROW(RUNNING,  welcome),
        [LIFE_EV_REFUSED]      = ROW(RUNNING,  refused),
        [LIFE_EV_WAITING]      = ROW(RUNNING,  waiting),
        [LIFE_EV_START]        = ROW(RUNNING,  start_again),
        [LIFE_EV_GO]           = IDLE(RUNNING),          /* Said twice, or too late. */
        [LIFE_EV_REACHED]      = IDLE(RUNNING),          /* Of a try in an earlier round. */
        [LIFE_EV_UNREACHED]    = IDLE(RUNNING),
        [LIFE_EV_HALT]         = ROW(RUNNING,  halt_running),
        [LIFE_EV_STOP]         = ROW(RUNNING,  stop_told),
        [LIFE_EV_END]          = ROW(RUNNING,  end_first_stop),
        [LIFE_EV_BEAT]         = ROW(RUNNING,  beat_answered),
        [LIFE_EV_SPAWNED]      = ROW(RUNNING,  spawned),
        [LIFE_EV_SPAWN_FAILED] = ROW(RUNNING,  spawn_failed),
        [LIFE_EV_WORKER_EXIT]  = ROW(RUNNING,  worker_exit),
        [LIFE_EV_SILENT]       = ROW(RUNNING,  tell_silent),
        [LIFE_EV_HUNG]         = ROW(RUNNING,  worker_hung),
        [LIFE_EV_CHECKED]      = IDLE(RUNNING),
        [LIFE_EV_SIGNAL]       = ROW(RUNNING,  signal_running),
        [LIFE_EV_DRAIN]        = ROW(RUNNING,  drain_running),
        [LIFE_EV_OWNER_GONE]   = ROW(RUNNING,  owner_running),
        [LIFE_EV_DEADLINE]     = ROW(RUNNING,  running_deadline),
        [LIFE_EV_DONE]         = ROW(FINISHED, say_finished),
        [LIFE_EV_BROKEN]       = ROW(STOPPING, stop_workers),
    },
    [LIFE_FINISHED] = {
        [LIFE_EV_LINK_UP]      = ROW(FINISHED, greet),
        [LIFE_EV_LINK_LOST]    = ROW(FINISHED, link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(FINISHED, link_failed),
        [LIFE_EV_WELCOME]      = ROW(FINISHED, welcome),
        [LIFE_EV_REFUSED]      = ROW(FINISHED, refused),
        [LIFE_EV_WAITING]      = ROW(FINISHED, waiting),
        [LIFE_EV_START]        = ROW(FINISHED, start_again),
        [LIFE_EV_GO]           = IDLE(FINISHED),          /* Said twice, or too late. */
        [LIFE_EV_REACHED]      = IDLE(FINISHED),          /* Of a try in an earlier round. */
        [LIFE_EV_UNREACHED]    = IDLE(FINISHED),
        [LIFE_EV_HALT]         = ROW(FINISHED, halt_finished),
        [LIFE_EV_STOP]         = ROW(FINISHED, stop_told),
        [LIFE_EV_END]          = ROW(FINISHED, end_first_stop),
        [LIFE_EV_BEAT]         = ROW(FINISHED, beat_answered),
        [LIFE_EV_ALL_GONE]     = ROW(FINISHED, note_gone),
        [LIFE_EV_CHECKED]      = IDLE(FINISHED),
        [LIFE_EV_SIGNAL]       = ROW(FINISHED, signal_finished),
        [LIFE_EV_DRAIN]        = ROW(FINISHED, drain_finished),
        [LIFE_EV_OWNER_GONE]   = ROW(FINISHED, owner_running),
        [LIFE_EV_DEADLINE]     = ROW(FINISHED, finished_deadline),
        [LIFE_EV_BROKEN]       = ROW(STOPPING, stop_workers),
        [LIFE_EV_QUIT]         = ROW(EXITED,   quit),
    },
    [LIFE_STOPPING] = {
        [LIFE_EV_LINK_UP]      = ROW(STOPPING, greet),
        [LIFE_EV_LINK_LOST]    = ROW(STOPPING, link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(STOPPING, link_failed),
        [LIFE_EV_WELCOME]      = ROW(STOPPING, welcome),
        [LIFE_EV_REFUSED]      = ROW(STOPPING, refused),
        [LIFE_EV_WAITING]      = ROW(STOPPING, waiting),
        [LIFE_EV_HALT]         = ROW(STOPPING, halt_stopping),
        [LIFE_EV_STOP]         = ROW(STOPPING, stop_again),
        [LIFE_EV_START]        = ROW(STOPPING, start_again),
        [LIFE_EV_GO]           = IDLE(STOPPING),          /* Said twice, or too late. */
        [LIFE_EV_END]          = ROW(STOPPING, end_noted),
        [LIFE_EV_BEAT]         = ROW(STOPPING, beat_answered),
        [LIFE_EV_REACHED]      = IDLE(STOPPING),          /* Too late: the round is being stopped. */
        [LIFE_EV_UNREACHED]    = IDLE(STOPPING),
        [LIFE_EV_STACKS]       = ROW(STOPPING, stacks_taken),
        [LIFE_EV_WORKER_EXIT]  = ROW(STOPPING, stopping_exit), /* A consequence of the stop, mostly. */
        [LIFE_EV_ALL_GONE]     = ROW(STOPPING, count_gone),
        [LIFE_EV_CHECKED]      = IDLE(STOPPING),
        [LIFE_EV_SIGNAL]       = ROW(STOPPING, signal_stopping),
        [LIFE_EV_DRAIN]        = ROW(STOPPING, drain_stopping),
        [LIFE_EV_OWNER_GONE]   = ROW(STOPPING, owner_stopping),
        [LIFE_EV_DEADLINE]     = ROW(STOPPING, stopping_deadline),
        [LIFE_EV_GONE_REJOIN]  = ROW(JOINING,  rejoin),
        [LIFE_EV_GONE_FINAL]   = ROW(ENDING,   wait_for_last_word),
        [LIFE_EV_QUIT]         = ROW(EXITED,   quit),
    },
    [LIFE_ENDING] = {
        [LIFE_EV_LINK_UP]      = ROW(ENDING,   greet),
        [LIFE_EV_LINK_LOST]    = ROW(ENDING,   link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(ENDING,   link_failed),
        [LIFE_EV_WELCOME]      = ROW(ENDING,   welcome),
        [LIFE_EV_REFUSED]      = ROW(ENDING,   refused),
        [LIFE_EV_WAITING]      = ROW(ENDING,   waiting),
        [LIFE_EV_HALT]         = IDLE(ENDING),          /* It ends already. */
        [LIFE_EV_STOP]         = ROW(ENDING,   stop_other_round),
        [LIFE_EV_START]        = ROW(ENDING,   start_too_late), /* A restarted server that never heard of the end. */
        [LIFE_EV_GO]           = IDLE(ENDING),          /* As above, of a round that is over. */
        [LIFE_EV_REACHED]      = IDLE(ENDING),
        [LIFE_EV_UNREACHED]    = IDLE(ENDING),
        [LIFE_EV_END]          = ROW(ENDING,   end_here),
        [LIFE_EV_BEAT]         = ROW(ENDING,   beat_answered),
        [LIFE_EV_CHECKED]      = IDLE(ENDING),
        [LIFE_EV_SIGNAL]       = ROW(ENDING,   signal_idle),
        [LIFE_EV_DRAIN]        = IDLE(ENDING),          /* It ends already. */
        [LIFE_EV_OWNER_GONE]   = ROW(ENDING,   signal_idle),
        [LIFE_EV_DEADLINE]     = ROW(ENDING,   ending_deadline),
        [LIFE_EV_QUIT]         = ROW(EXITED,   quit),
    },
    [LIFE_EXITED] = { /* What was under way when EXIT went out. */
        [LIFE_EV_LINK_UP]      = IDLE(EXITED),
        [LIFE_EV_LINK_LOST]    = IDLE(EXITED),
        [LIFE_EV_LINK_FAILED]  = IDLE(EXITED),
        [LIFE_EV_WELCOME]      = IDLE(EXITED),
        [LIFE_EV_REFUSED]      = IDLE(EXITED),
        [LIFE_EV_WAITING]      = IDLE(EXITED),
        [LIFE_EV_START]        = IDLE(EXITED),
        [LIFE_EV_GO]           = IDLE(EXITED),
        [LIFE_EV_REACHED]      = IDLE(EXITED),
        [LIFE_EV_UNREACHED]    = IDLE(EXITED),
        [LIFE_EV_HALT]         = IDLE(EXITED),
        [LIFE_EV_STOP]         = IDLE(EXITED),
        [LIFE_EV_END]          = IDLE(EXITED),
        [LIFE_EV_BEAT]         = IDLE(EXITED),
        [LIFE_EV_CHECKED]      = IDLE(EXITED),
        [LIFE_EV_WORKER_EXIT]  = IDLE(EXITED),
        [LIFE_EV_ALL_GONE]     = IDLE(EXITED),
        [LIFE_EV_SIGNAL]       = IDLE(EXITED),
        [LIFE_EV_DRAIN]        = IDLE(EXITED),
        [LIFE_EV_OWNER_GONE]   = IDLE(EXITED),
        [LIFE_EV_DEADLINE]     = IDLE(EXITED),
    },
};
/* clang-format on */

int life_table_to(enum life_state s, enum life_event_type e)
{
    return table[s][e].to - 1;
}

int life_init(struct life *l,
              const struct mu_mem *mem,
              int64_t now_ns,
              const struct life_config *config)
{
    size_t n = (size_t)config->hello.nproc;
    *l = (struct life){.mem = mem,
                       .state = LIFE_JOINING,
                       .config = *config,
                       .random = config->seed | 1,
                       .beat_ns = MU_BEAT_NS,
                       .heard_ns = now_ns,
                       .beat_at_ns = NEVER,
                       .connect_at_ns = now_ns,
                       .backoff_ns = BACKOFF_MIN_NS,
                       .needed_since_ns = now_ns,
                       .gone = true,
                       .stranger_ns = NEVER,
                       .unserved_ns = now_ns,
                       .next_word_ns = now_ns,
                       .word_gap_ns = MU_FIRST_WORD_NS,
                       .tell_at_ns = NEVER,
                       .health = config->checks_health ? LIFE_HEALTH_CHECKING : LIFE_HEALTH_OK,
                       .recheck_at_ns = config->checks_health ? now_ns : NEVER,
                       .recheck_gap_ns =
                           config->recheck_ns > 0 ? config->recheck_ns : MU_HEALTH_GAP_NS,
                       .stop_deadline_ns = NEVER,
                       .signo = SIGNO_TERM,
                       .halt_step = -1,
                       .cause = MU_CAUSE_INIT,
                       .failure = MU_CAUSE_INIT,
                       .bye = MU_CAUSE_INIT,
                       .max_restarts = (uint32_t)config->hello.max_restarts,
                       .exit_status = 1,
                       .deadline_ns = now_ns};
    if (config->server[0] == '\0')
        (void)snprintf(l->config.server, sizeof l->config.server, "the server");
    (void)snprintf(l->last_error, sizeof l->last_error, "%.200s: no answer yet", l->config.server);
    l->exits = mu_zalloc(mem, n * sizeof *l->exits);
    l->pids = mu_zalloc(mem, n * sizeof *l->pids);
    l->exit_untold = mu_zalloc(mem, n * sizeof *l->exit_untold);
    l->steps = mu_zalloc(mem, n * sizeof *l->steps);
    l->silent = mu_zalloc(mem, n * CTL_SILENT_NUMBERS * sizeof *l->silent);
    l->actions = mu_zalloc(mem, (n + EXTRA_ACTIONS) * sizeof *l->actions);
    if (l->exits == NULL || l->pids == NULL || l->exit_untold == NULL || l->actions == NULL ||
        l->steps == NULL || l->silent == NULL) {
        life_fini(l);
        return -ENOMEM;
    }
    return 0;
}

void life_fini(struct life *l)
{
    mu_mem_free(l->mem, l->exits);
    mu_mem_free(l->mem, l->pids);
    mu_mem_free(l->mem, l->exit_untold);
    mu_mem_free(l->mem, l->steps);
    mu_mem_free(l->mem, l->silent);
    mu_mem_free(l->mem, l->actions);
    l->exits = NULL;
    l->pids = NULL;
    l->exit_untold = NULL;
    l->steps = NULL;
    l->silent = NULL;
    l->actions = NULL;
}

int life_step(struct life *l, int64_t now_ns, const struct life_event *ev, struct life_out *out)
{
    enum life_event_type type = ev->type;
    out->count = 0;
    out->move_count = 0;
    l->action_count = 0;
    l->words_used = 0;
    for (;;) {
        const struct life_row *row = &table[l->state][type];
        if (row->to == 0) {
            MU_ASSERT(out->move_count == 0); /* News of our own always have a row. */
            l->rejected_count++;
            return -EPROTO;
        }
        int news = row->act != NULL ? row->act(l, now_ns, ev) : 0;
        MU_ASSERT(out->move_count < LIFE_MOVES_MAX);
        out->moves[out->move_count++] =
            (struct life_move){type, l->state, (enum life_state)(row->to - 1)};
        l->state = (enum life_state)(row->to - 1); /* The only line that writes the state. */
        if (news == 0)
            break;
        type = (enum life_event_type)news;
    }
    l->deadline_ns = life_next_deadline(l);
    out->actions = l->actions;
    out->count = l->action_count;
    return 0;
}
