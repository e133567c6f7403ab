/* One rank of a job, under whatever launcher: says who it is, meets the others in the store,
 * leaves.
 *
 * usage: sdk_core_rank [busy N | crash RANK | twice]
 *   busy N       every rank but 0 makes N requests after rank 0 has begun to leave
 *   crash RANK   that rank ends without a goodbye
 *   twice        open, meet and leave, two times over */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/muster.h>
#include <muster/store.h>

static const char *const launchers[] = {"none", "agent", "torchrun", "mpi", "slurm"};

static int fail(const char *what, const struct muster_error *err)
{
    fprintf(stderr, "%s: %d %s\n", what, err->code, err->text);
    return 1;
}

/* In one write: ranks share the pipe. */
static void say(const struct muster_env *e, int64_t here)
{
    char line[1024];
    int n = snprintf(line, sizeof line,
                     "launcher=%s rank=%u world=%u local=%u/%u node=%u/%u round=%u restarts=%u/%u "
                     "run_id=%s served=%d store=%s:%u here=%" PRId64 "\n",
                     launchers[e->launcher], e->rank, e->world, e->local_rank, e->local_world,
                     e->node_rank, e->node_count, e->round, e->restart_count, e->restarts_max,
                     e->run_id, e->store_is_served, e->store_host, e->store_port, here);
    if (n > 0)
        (void)!write(STDOUT_FILENO, line, (size_t)n);
}

static int busy(muster_store *s, const struct muster_env *e, long count, struct muster_error *err)
{
    int64_t n = 0;
    int r = 0;
    for (long i = 0; i < count && r == 0 && e->rank > 0; i++)
        r = muster_store_add(s, "busy", 1, &n, err);
    return r;
}

static int one_life(int argc, char **argv)
{
    struct muster_error err = {0};
    muster *m = NULL;
    int64_t here = 1;
    if (muster_open(NULL, &m, &err) < 0)
        return fail("open", &err);
    const struct muster_env *e = muster_get_env(m);
    muster_store *s = muster_get_store(m);
    if (s != NULL &&
        (muster_store_add(s, "met", 1, &here, &err) < 0 ||
         muster_store_barrier(s, "all", e->rank, e->world, INT64_C(60000000000), &err) < 0 ||
         muster_store_add(s, "met", 0, &here, &err) < 0))
        return fail("meet", &err);
    say(e, here);
    if (argc > 2 && strcmp(argv[1], "crash") == 0 && strtoul(argv[2], NULL, 10) == e->rank)
        _exit(0);
    if (argc > 2 && strcmp(argv[1], "busy") == 0 && busy(s, e, strtol(argv[2], NULL, 10), &err) < 0)
        return fail("busy", &err);
    muster_close(m);
    return 0;
}

int main(int argc, char **argv)
{
    int r = one_life(argc, argv);
    if (r == 0 && argc > 1 && strcmp(argv[1], "twice") == 0)
        r = one_life(argc, argv);
    return r;
}
