/* One rank that gets ids, for tests: says what it got or why not, a line each.
 *
 * nccl_ids [maker=nccl|own|failing] [same=TEXT] [count=N] [seconds=S] [name=NAME] WORD...
 *   exchange   prints "start NUMBER id HEX ..." or "refused CODE SENTENCE"
 *   refuse     tells that this rank cannot take part
 *   leave      leaves the second mark
 *   fail       says that this rank's start failed
 *   check      prints "check CODE SENTENCE"
 *   missing    prints "missing CODE SENTENCE"
 *   stay       prints "staying" and waits for the end of standard input
 * Settings hold for the words behind them. Makers: NCCL itself, bytes of our own, or none at all.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/id.h>

#define ID_BYTES 128
#define COUNT_MAX 64

struct rank {
    muster *m;
    struct muster_id_options o;
    const char *maker;
    uint64_t number;
};

static int make_by_nccl(void *arg, void *ret_id, size_t id_bytes, struct muster_error *err)
{
    const char *path = getenv("MUSTER_NCCL_LIBRARY");
    void *library = dlopen(path == NULL ? "libnccl.so.2" : path, RTLD_NOW | RTLD_NODELETE);
    int (*make)(void *) = NULL;
    void *found = library == NULL ? NULL : dlsym(library, "ncclGetUniqueId");
    memcpy(&make, &found, sizeof found);
    return make == NULL || id_bytes != ID_BYTES || make(ret_id) != 0 ? -EIO : 0;
}

static int make_own(void *arg, void *ret_id, size_t id_bytes, struct muster_error *err)
{
    static int made;
    memset(ret_id, 0, id_bytes);
    (void)snprintf(ret_id, id_bytes, "process %d, id %d", (int)getpid(), ++made);
    return 0;
}

static int make_nothing(void *arg, void *ret_id, size_t id_bytes, struct muster_error *err)
{
    err->code = -EIO;
    (void)snprintf(err->text, sizeof err->text, "no network interface is up");
    return -EIO;
}

static void exchange(struct rank *k)
{
    static char ids[COUNT_MAX * ID_BYTES];
    struct muster_error err = {0};
    k->o.maker = strcmp(k->maker, "nccl") == 0  ? make_by_nccl
                 : strcmp(k->maker, "own") == 0 ? make_own
                                                : make_nothing;
    int r = muster_id_exchange(k->m, &k->o, ids, &k->number, &err);
    if (r < 0) {
        printf("refused %d %s\n", r, err.text);
        return;
    }
    printf("start %" PRIu64, k->number);
    for (uint32_t i = 0; i < k->o.id_count; i++) {
        printf(" id ");
        for (size_t b = 0; b < ID_BYTES; b++)
            printf("%02x", (unsigned char)ids[i * ID_BYTES + b]);
    }
    printf("\n");
}

static void say(const char *what, int r, const struct muster_error *err)
{
    printf("%s %d %s\n", what, r, r < 0 ? err->text : "");
}

static void run_word(struct rank *k, const char *word)
{
    struct muster_error err = {0};
    struct muster_error why = {-EIO, "the test says so"};
    if (strcmp(word, "exchange") == 0) {
        exchange(k);
    } else if (strcmp(word, "refuse") == 0) {
        say("refuse", muster_id_refuse(k->m, k->o.name, &why, &err), &err);
    } else if (strcmp(word, "leave") == 0) {
        say("leave", muster_id_left(k->m, k->o.name, k->number, &err), &err);
    } else if (strcmp(word, "fail") == 0) {
        say("fail", muster_id_failed(k->m, k->o.name, k->number, &why, &err), &err);
    } else if (strcmp(word, "check") == 0) {
        say("check", muster_id_check(k->m, k->o.name, k->number, &err), &err);
    } else if (strcmp(word, "missing") == 0) {
        say("missing", muster_id_missing(k->m, k->o.name, k->number, &err), &err);
    } else if (strcmp(word, "stay") == 0) {
        printf("staying\n");
        while (getchar() != EOF) {
        }
    } else {
        printf("unknown word %s\n", word);
        exit(2);
    }
}

static bool set(struct rank *k, const char *word)
{
    const char *value = strchr(word, '=');
    if (value == NULL)
        return false;
    value++;
    if (strncmp(word, "maker=", 6) == 0)
        k->maker = value;
    else if (strncmp(word, "same=", 5) == 0)
        k->o.same = value;
    else if (strncmp(word, "name=", 5) == 0)
        k->o.name = value;
    else if (strncmp(word, "count=", 6) == 0)
        k->o.id_count = (uint32_t)strtoul(value, NULL, 10);
    else if (strncmp(word, "seconds=", 8) == 0)
        k->o.timeout_ns = (int64_t)(strtol(value, NULL, 10) * 1000000000L);
    return true;
}

int main(int argc, char **argv)
{
    struct rank k = {.o = MUSTER_ID_OPTIONS_INIT, .maker = "own"};
    struct muster_error err = {0};
    k.o.name = "ids";
    k.o.id_bytes = ID_BYTES;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    int r = muster_open(NULL, &k.m, &err);
    if (r < 0) {
        printf("open %d %s\n", r, err.text);
        return 1;
    }
    for (int i = 1; i < argc; i++)
        if (!set(&k, argv[i]))
            run_word(&k, argv[i]);
    muster_close(k.m);
    return 0;
}
