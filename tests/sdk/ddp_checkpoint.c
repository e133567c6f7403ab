/* A writer and a reader of checkpoints, for tests that kill it, fill its disk, or make it stale.
 *
 *     ddp_checkpoint write DIR STEP TEXT    a checkpoint with TEXT in two files; prints "step N"
 *     ddp_checkpoint slow DIR STEP TEXT     the same, but says "begun" and reads a line before
 * commit ddp_checkpoint latest DIR             prints the newest whole one's step, path and TEXT,
 * or "none" ddp_checkpoint prune DIR KEEP
 *
 * Exit status 1 with the sentence on stderr for an error, 3 for -ESTALE. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <muster/checkpoint.h>

static int fail(const struct muster_error *err)
{
    (void)fprintf(stderr, "%s\n", err->text);
    return err->code == -ESTALE ? 3 : 1;
}

static int put(const char *folder, const char *name, const char *text)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return -1;
    int bad = fputs(text, f) < 0;
    return fclose(f) != 0 || bad ? -1 : 0;
}

static int put_all(const char *folder, const char *text)
{
    char inner[600];
    (void)snprintf(inner, sizeof inner, "%s/inner", folder);
    if (mkdir(inner, 0777) < 0)
        return -1;
    return put(folder, "weights", text) < 0 ? -1 : put(inner, "optimizer", text);
}

static int write_one(const char *dir, const char *step, const char *text, bool slow)
{
    struct muster_error err = {0};
    muster *m = NULL;
    muster_checkpoint *k = NULL;
    char line[16];
    if (muster_open(NULL, &m, &err) < 0)
        return fail(&err);
    int r = muster_checkpoint_begin(m, NULL, dir, strtoull(step, NULL, 10), &k, &err);
    if (r == 0 && put_all(muster_checkpoint_path(k), text) < 0) {
        (void)fprintf(stderr, "write: %s\n", strerror(errno));
        muster_checkpoint_discard(k);
        muster_close(m);
        return 1;
    }
    if (r == 0 && slow) {
        (void)puts("begun");
        (void)fflush(stdout);
        if (fgets(line, sizeof line, stdin) == NULL)
            return 4;
    }
    if (r == 0)
        r = muster_checkpoint_commit(k, &err);
    muster_close(m);
    if (r < 0)
        return fail(&err);
    (void)printf("step %s\n", step);
    return 0;
}

static int get(const char *path, const char *name, char *ret, size_t cap)
{
    char file[700];
    (void)snprintf(file, sizeof file, "%s/%s", path, name);
    FILE *f = fopen(file, "r");
    if (f == NULL)
        return -1;
    ret[fread(ret, 1, cap - 1, f)] = '\0';
    return fclose(f);
}

static int latest(const char *dir)
{
    struct muster_error err = {0};
    uint64_t step = 0;
    char path[512];
    char a[256] = "";
    char b[256] = "";
    int r = muster_checkpoint_latest(dir, &step, path, sizeof path, &err);
    if (r < 0)
        return fail(&err);
    if (r == 0)
        return puts("none") < 0;
    if (get(path, "weights", a, sizeof a) < 0 || get(path, "inner/optimizer", b, sizeof b) < 0 ||
        strcmp(a, b) != 0)
        return puts("broken") < 0;
    return printf("%" PRIu64 " %s %s\n", step, path, a) < 0;
}

int main(int argc, char **argv)
{
    struct muster_error err = {0};
    if (argc == 5 && strcmp(argv[1], "write") == 0)
        return write_one(argv[2], argv[3], argv[4], false);
    if (argc == 5 && strcmp(argv[1], "slow") == 0)
        return write_one(argv[2], argv[3], argv[4], true);
    if (argc == 3 && strcmp(argv[1], "latest") == 0)
        return latest(argv[2]);
    if (argc == 4 && strcmp(argv[1], "prune") == 0)
        return muster_checkpoint_prune(argv[2], strtoul(argv[3], NULL, 10), &err) < 0 ? fail(&err)
                                                                                      : 0;
    (void)fprintf(stderr, "usage: write|slow|latest|prune DIR ...\n");
    return 2;
}
