/* A worker that tells its agent things, for tests.
 *
 *     ddp_progress steps N      N steps with a section in each
 *     ddp_progress fail         fails in step 5, in a section
 *     ddp_progress until-stop   blocks SIGTERM, says "looking", asks until it should stop, and says
 *                               whether SIGTERM had come by then */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/progress.h>

static int steps(muster *m, uint64_t n)
{
    for (uint64_t step = 1; step <= n; step++) {
        muster_section_begin(m, "load data", INT64_C(30000000000));
        muster_section_end(m);
        muster_progress(m, step);
    }
    return 0;
}

static int fail(muster *m)
{
    struct muster_error err = {0};
    (void)steps(m, 4);
    for (int i = 0; i < 50; i++) { /* More than the agent takes at one look. */
        muster_section_begin(m, "busy", -1);
        muster_section_end(m);
    }
    muster_section_begin(m, "load data", INT64_C(30000000000));
    if (muster_fail(m, "the disk is gone", &err) < 0)
        (void)fprintf(stderr, "%s\n", err.text);
    return 1;
}

static bool sigterm_pending(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, SIGTERM) == 1;
}

static int until_stop(muster *m)
{
    sigset_t term;
    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &term, NULL);
    bool stop = muster_stop_requested(m);
    (void)puts("looking");
    (void)fflush(stdout);
    while (!stop) {
        bool came = sigterm_pending(); /* Before we look: then the word must have come too. */
        stop = muster_stop_requested(m);
        if (came && !stop) {
            (void)puts("late: SIGTERM came before the word");
            break;
        }
        (void)poll(NULL, 0, 1);
    }
    (void)printf("stop sigterm_pending=%d\n", sigterm_pending());
    return 0;
}

int main(int argc, char **argv)
{
    struct muster_error err = {0};
    muster *m = NULL;
    int status = 2;
    if (muster_open(NULL, &m, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (argc == 3 && strcmp(argv[1], "steps") == 0)
        status = steps(m, strtoull(argv[2], NULL, 10));
    else if (argc == 2 && strcmp(argv[1], "fail") == 0)
        status = fail(m);
    else if (argc == 2 && strcmp(argv[1], "until-stop") == 0)
        status = until_stop(m);
    muster_close(m);
    return status;
}
