/* Progress, sections and the question whether to stop; see <muster/progress.h>. */
#include <muster/progress.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "worker-sdk/src/agent/progress_line.h"
#include "worker-sdk/src/core/sdk.h"

int sdk_agent_open(muster *m, struct muster_error *err)
{
    (void)err; /* No agent is no error. */
    m->agent_fd = line_open();
    return 0;
}

void sdk_agent_close(muster *m)
{
    line_flush();
    m->agent_fd = -1; /* The line is the process's: it stays. */
}

void muster_progress(muster *m, uint64_t step)
{
    (void)m;
    line_progress(step);
}

void muster_progress_flush(muster *m)
{
    (void)m;
    line_flush();
}

void muster_section_begin(muster *m, const char *name, int64_t limit_ns)
{
    (void)m;
    line_section_begin(name, limit_ns);
}

void muster_section_end(muster *m)
{
    (void)m;
    line_section_end();
}

void muster_request_stop(muster *m)
{
    (void)m;
    line_request_stop();
}

bool muster_stop_requested(muster *m)
{
    (void)m;
    return line_stop_requested();
}

/* Of all ranks: was one asked to stop, with which steps did they ask, and was one told to stop
 * after such a step? */
static int
ask_all(muster *m, muster_comm *c, int64_t step, int64_t ret[4], struct muster_error *err)
{
    muster_ticket ticket = 0;
    int r = 0;
    ret[0] = muster_stop_requested(m);
    ret[1] = step;
    ret[2] = -step;
    ret[3] = line_stops_after((uint64_t)step);
    if (m->env.world == 1)
        return 0;
    if (c == NULL)
        return sdk_error(err, -EINVAL,
                         "should_stop: give the communicator of all ranks: only a world of one "
                         "needs none");
    if (strcmp(muster_comm_backend(c), "nccl") == 0)
        return sdk_error(err, -EINVAL,
                         "should_stop: a communicator on the CPU's memory is needed: open a second "
                         "one with backend \"tcp\" and a name of its own");
    r = muster_comm_all_reduce(c, ret, 4, MUSTER_I64, MUSTER_MAX, &ticket, err);
    if (r == 0)
        r = muster_comm_wait(c, ticket, m->timeout_ns, err);
    return r < 0 ? sdk_error_wrap(err, r, "should_stop") : 0;
}

int muster_should_stop(
    muster *m, muster_comm *c, uint64_t step, bool *ret, struct muster_error *err)
{
    int64_t all[4];
    if (step > INT64_MAX)
        return sdk_error(err, -ERANGE, "should_stop: step %" PRIu64 " is too large", step);
    int r = ask_all(m, c, (int64_t)step, all, err);
    if (r < 0)
        return r;
    if (all[1] != -all[2])
        return sdk_error(err, -EPROTO,
                         "should_stop: ranks asked with steps %" PRId64 " to %" PRId64
                         ": all must ask after the same step",
                         -all[2], all[1]);
    if (all[3] != 0)
        line_halts(step);
    *ret = all[0] != 0 || all[3] != 0;
    return 0;
}
