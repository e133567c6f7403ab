/* The fence rule as a model for spin: never two rounds at once (docs/architecture.md "What must stay true").
 *
 * Three agents and one server; START and STOP take as long as they like; agents die and come back, hosts are cut off and heal, the
 * server dies and is started anew. Each option is named after the function of rendezvous/job or agent/life that it stands for, and keeps
 * only what the rule needs: who has which rank, why a round broke and what that cost are the simulation's business (tests/sim).
 *
 * Time is ticks. FENCE is the fence time; an agent that was not heard stops its workers at FENCE - 1 (in life.c from 0.7 to 0.85 of it).
 * No tick passes over a kill that is due: a frozen agent, which cannot keep the rule, is not in this model. A word of an agent (HELLO,
 * BEAT, STOPPED) and its answer take no time, which is the worst case: an agent counts from when it sent what was answered, so any time
 * on the way lets it stop its workers sooner and the server give it up later.
 *
 *   -DNO_FENCE   an agent that is not heard lets its workers run
 *   -DNO_LATE    an agent obeys a START, however long that was under way
 *   -DNO_WAIT    the server does not wait for the fence time of a member that it cannot reach
 *   -DNO_STATE   the server keeps nothing over its death: it learns from the agents that come back in the recovery window
 * fence.py demands that each of them breaks the rule, and that it holds without them. */

#define N 3
#define MIN 2 /* Nodes a round needs. */
#define FENCE 2
#define RECOVERY 1 /* Ticks for which a restarted server that knows nothing hears the agents out. */
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef FAULTS
#define FAULTS 3 /* Deaths of agents, cuts and deaths of the server, all together. */
#endif

#define GATHERING 0
#define RECOVERING 1
#define RUNNING 2
#define STOPPING 3

/* The server. When it dies, state, round, member and owes are what it keeps. */
bool up = true;
byte state = GATHERING;
byte round = 0; /* The live or last round. */
byte recovery = RECOVERY;
bool member[N]; /* Of the round. */
bool owes[N];   /* Its word is missing: that nothing is left (STOPPING), that it is there (RECOVERING). */
byte silent[N]; /* Ticks since it was heard. */
bool connected[N];

/* The agents. */
bool alive[N] = true;
byte lives[N];    /* Round of the workers that live there; 0: none. */
byte last[N];     /* Round it was in last. */
byte unheard[N];  /* Ticks since it was heard, as it knows. */
byte start_of[N]; /* The round of a START that is under way to it; 0: none is. */
byte stop_of[N];  /* Of a STOP. */

bool cut[N]; /* Its host and the server do not reach each other. */
byte faults = 0;
byte k = 0; /* Of loops, which leave it at 0. */

#define older(age) age = (age < FENCE -> age + 1 : FENCE)

/* ------------------------------------------------------------------ the server */

inline lose_link(i)
{
    start_of[i] = 0;
    stop_of[i] = 0;
    connected[i] = false
}

/* ranks_assign(), and START to each member. */
inline row_begin_round()
{
    round++;
    state = RUNNING;
    for (k : 0 .. N - 1) {
        member[k] = connected[k];
        owes[k] = false;
        if
        :: connected[k] -> start_of[k] = round; stop_of[k] = 0
        :: else
        fi
    };
    k = 0
}

inline row_stop_round()
{
    state = STOPPING;
    for (k : 0 .. N - 1) {
        owes[k] = member[k];
        if
        :: member[k] && connected[k] -> stop_of[k] = round
        :: else
        fi
    };
    k = 0
}

/* Of a round that this server has never heard of, or a later one than it has: any agent may be a member. */
inline expect_round(i)
{
    state = RECOVERING;
    round = lives[i];
    for (k : 0 .. N - 1) {
        member[k] = true;
        owes[k] = (k != i);
        silent[k] = 0
    };
    k = 0
}

/* HELLO, BEAT or STOPPED of agent i: what it says of itself counts. */
inline said(i)
{
    silent[i] = 0;
    unheard[i] = 0; /* life_row_welcome(), life_row_beat_answered() */
    connected[i] = true;
    if
    :: (state == GATHERING && round == 0 || state == RECOVERING) && lives[i] > round -> expect_round(i) /* row_begin_recovery() */
    :: state == RECOVERING && lives[i] == round -> owes[i] = false                                     /* take_member() */
    :: state == RECOVERING && member[i] && lives[i] == 0 && last[i] != round -> start_of[i] = round; owes[i] = false /* START was lost. */
    :: state == RECOVERING && member[i] && lives[i] == 0 && last[i] == round -> row_stop_round(); owes[i] = false /* It fenced itself. */
    :: state == RUNNING && member[i] && lives[i] == 0 && last[i] != round && start_of[i] == 0 -> start_of[i] = round
    :: state == RUNNING && member[i] && lives[i] == 0 && last[i] == round -> row_stop_round(); owes[i] = false
    :: state == STOPPING && member[i] && lives[i] == 0 && start_of[i] == 0 -> owes[i] = false /* row_stop_stopped() */
    :: state == STOPPING && member[i] && lives[i] != 0 && stop_of[i] == 0 -> stop_of[i] = lives[i] /* STOP was lost. */
    :: state != STOPPING && lives[i] != 0 && (lives[i] != round || !member[i]) && stop_of[i] == 0 -> stop_of[i] = lives[i] /* stop_stale() */
    :: else
    fi
}

/* A member was silent for the fence time, or its process is known to be dead: row_run_left(), row_stop_left(). */
inline left(i)
{
    if
    :: (state == RUNNING || state == RECOVERING) && member[i] -> row_stop_round()
    :: else
    fi;
    member[i] = false;
    owes[i] = false;
    lose_link(i)
}

inline restart()
{
    up = true;
#ifdef NO_STATE
    recovery = 0;
    round = 0;
    state = GATHERING;
#else
    state = (state == RUNNING -> RECOVERING : state); /* job_load() */
#endif
    for (k : 0 .. N - 1) {
#ifdef NO_STATE
        member[k] = false;
#endif
        silent[k] = 0; /* Everybody has its full time anew. */
        owes[k] = member[k] && (state == RECOVERING || owes[k])
    };
    k = 0
}

#define here (connected[0] + connected[1] + connected[2])
#define nobody_owes (!owes[0] && !owes[1] && !owes[2])
#ifdef NO_WAIT
#define long_silent(i) (silent[i] >= FENCE || !connected[i])
#else
#define long_silent(i) (silent[i] >= FENCE)
#endif
#define next_silent(i) (up && state != GATHERING && member[i] && long_silent(i))

active proctype server()
{
end:
    do
    :: d_step { up && state == GATHERING && here >= MIN && round < ROUNDS && (round != 0 || recovery >= RECOVERY) -> row_begin_round() }
    :: d_step { up && state == RUNNING -> row_stop_round() } /* row_run_failed(): some worker failed. */
    :: d_step { up && state == STOPPING && nobody_owes -> state = GATHERING } /* row_gather() */
    :: d_step { up && state == RECOVERING && nobody_owes -> state = RUNNING } /* row_resume_round() */
    :: d_step { next_silent(0) -> left(0) }
    :: d_step { next_silent(1) -> left(1) }
    :: d_step { next_silent(2) -> left(2) }
    od
}

/* ------------------------------------------------------------------ the agents */

#ifdef NO_LATE
#define too_late(i) false
#else
#define too_late(i) (unheard[i] >= FENCE - 1)
#endif
#define one_round(i, r) (lives[i] == 0 || lives[i] == r)
#define only_round(r) (one_round(0, r) && one_round(1, r) && one_round(2, r))

inline start(i)
{
    if
    :: lives[i] != 0 -> skip /* life_row_start_again() */
    :: lives[i] == 0 && too_late(i) -> last[i] = start_of[i] /* The round may be over. */
    :: else ->
        lives[i] = start_of[i];
        last[i] = start_of[i];
        assert(only_round(lives[i]))
    fi;
    start_of[i] = 0
}

inline stop_told(i)
{
    lives[i] = (stop_of[i] == lives[i] -> 0 : lives[i]);
    stop_of[i] = 0
}

#define reaches(i) (alive[i] && !cut[i])
#define AGENT(i)                                                                                                                           \
    :: d_step { up && reaches(i) -> said(i) }                                                                                             \
    :: d_step { !up && reaches(i) -> unheard[i] = 0; lose_link(i) } /* life_row_link_failed(): refused, so nobody decides. */                      \
    :: d_step { reaches(i) && start_of[i] != 0 -> start(i) }                                                                              \
    :: d_step { reaches(i) && stop_of[i] != 0 && start_of[i] == 0 -> stop_told(i) }                                                       \
    :: d_step { FENCES && alive[i] && lives[i] != 0 && unheard[i] >= FENCE - 1 -> lives[i] = 0 } /* life_fence() */

#ifdef NO_FENCE
#define FENCES false
#else
#define FENCES true
#endif

active proctype agents()
{
end:
    do
    AGENT(0)
    AGENT(1)
    AGENT(2)
    od
}

/* ------------------------------------------------------------------ the world */

#define kill_is_due(i) (FENCES && lives[i] != 0 && unheard[i] >= FENCE - 1)

/* A new agent takes its place at once: it knows nothing, and nothing outlives the old one. */
inline die(i)
{
    faults++;
    lives[i] = 0;
    last[i] = 0;
    unheard[i] = 0;
    if
    :: up && !cut[i] -> left(i) /* NODE_DEAD: its kernel closes the connection. */
    :: else -> lose_link(i)
    fi
}

active proctype world()
{
end:
    do
    :: d_step { !kill_is_due(0) && !kill_is_due(1) && !kill_is_due(2) -> /* A tick. */
            for (k : 0 .. N - 1) {
                older(unheard[k]);
                older(silent[k])
            };
            k = 0;
            recovery = (recovery < RECOVERY -> recovery + 1 : RECOVERY) }
    :: d_step { faults < FAULTS -> die(0) }
    :: d_step { faults < FAULTS -> die(1) }
    :: d_step { faults < FAULTS -> die(2) }
    :: d_step { faults < FAULTS && !cut[0] -> cut[0] = true; faults++ }
    :: d_step { faults < FAULTS && !cut[1] -> cut[1] = true; faults++ }
    :: d_step { faults < FAULTS && !cut[2] -> cut[2] = true; faults++ }
    /* It heals: what was under way arrives, or the link is lost. */
    :: d_step { cut[0] -> cut[0] = false }
    :: d_step { cut[1] -> cut[1] = false }
    :: d_step { cut[2] -> cut[2] = false }
    :: d_step { cut[0] -> cut[0] = false; lose_link(0) }
    :: d_step { cut[1] -> cut[1] = false; lose_link(1) }
    :: d_step { cut[2] -> cut[2] = false; lose_link(2) }
    :: d_step { up && faults < FAULTS -> /* The server dies; what it has sent still arrives. */
            faults++;
            up = false;
            for (k : 0 .. N - 1) {
                connected[k] = false
            };
            k = 0 }
    :: d_step { !up -> restart() }
    od
}
