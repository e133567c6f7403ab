/* Nothing outlives its owner, SIGKILL included. The process that was started stays as a tiny warden
 * and its child becomes the agent: whichever of the two is killed, the other one is there to end
 * what the agent had started.
 *
 *   starter ── warden (the pid that everyone knows) ── agent (its own process group) ── workers (a
 * session each)
 *
 * The warden forwards signals to the agent, adopts its descendants when it dies
 * (PR_SET_CHILD_SUBREAPER), kills and reaps them, and exits with the agent's exit status. As PID 1
 * of a container it also reaps what it adopts. The agent has a process group of its own, so that
 * each signal reaches it once and by one way, from a terminal or from kill(1), and so that a
 * SIGKILL for the whole group of the warden leaves it alive to clean up.
 *
 * The agent has another name too ("muster-agent"), so that who kills by name kills one of the two.
 *
 * Known limit: warden and agent killed in the same instant. Workers die even then
 * (PR_SET_PDEATHSIG); what they forked stays. A supervisor that ends a whole cgroup (systemd, a
 * container's runtime) closes that gap. */
#ifndef MUSTER_AGENT_WARDEN_H
#define MUSTER_AGENT_WARDEN_H

#include <stdbool.h>
#include <sys/types.h>

#include <uv.h>

struct warden;

/* Who started us may be a service (node-agent --service): then this variable has its pid, and is
 * gone from our environment before the agent begins. */
#define WARDEN_SERVICE_VARIABLE "MUSTER_SERVICE_PID"

/* The signals that a service sends have a value. With this one in a SIGTERM the warden ends at
 * once, so that the agent can say who did it. */
#define WARDEN_END_NOW 9

enum warden_owner {
    WARDEN_OWNER_OTHER, /* No service, or it has to do with nothing that has happened. */
    WARDEN_OWNER_DIED,
    WARDEN_OWNER_ENDS_US /* WARDEN_END_NOW. */
};

/* Call first thing in main(), before threads, descriptors or memory: all there is then is copied.
 * Opens /dev/null for those of descriptors 0 to 2 that are closed. In the child: agent_main(warden,
 * arg), with the signal mask we were started with; its return value is the agent's exit status. In
 * the parent: returns when the agent and all it left are gone. Both ways main() returns what this
 * returns. the agent exited          its exit status a signal killed it        1, and one sentence
 * on stderr there is no second process to be had   1, and one sentence on stderr: nothing was
 * started. The warden forwards every signal that can be caught, except SIGCHLD, and SIGPIPE; what
 * they mean is the agent's business. SIGTSTP stops both. `program` names us in sentences
 * ("node-agent"). */
int warden_run(const char *program, int (*agent_main)(struct warden *w, void *arg), void *arg);

/* --- for the agent --- */

/* Tell it, after each work_start(), the cgroup that all workers are in (work_cgroup()): killed at
 * once, and removed, should the agent die. NULL: none. Borrowed for the call. A path too long is
 * not kept. */
void warden_note_cgroup(struct warden *w, const char *path);

/* Tell it the folder of logs.h that nobody named: logs_remove() should the agent be killed. NULL:
 * none. Borrowed for the call. A path too long is not kept. */
void warden_note_logs(struct warden *w, const char *base, bool in_memory);

/* What the service has to do with a SIGTERM, or with the warden's end; its pid where it has. */
enum warden_owner warden_owner(const struct warden *w, pid_t *ret_pid);

/* Call on_lost once, from the loop, as soon as the warden is dead. The handle does not keep the
 * loop alive. Returns 0 or a negative errno. warden_unwatch() closes it: run the loop once more
 * before uv_loop_close(). */
int warden_watch(struct warden *w, uv_loop_t *loop, void (*on_lost)(void *arg), void *arg);
void warden_unwatch(struct warden *w);

#endif
