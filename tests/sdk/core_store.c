/* A store client driven by lines: each line of stdin is a command, each line of stdout its result.
 * For tests that put libmuster's client in front of other people's servers.
 *
 * usage: sdk_core_store HOST PORT PREFIX TIMEOUT_SECONDS */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/store.h>

#define WORDS 64

static void say_bytes(const struct muster_bytes *b)
{
    printf(" ");
    for (size_t i = 0; i < b->n; i++)
        printf("%02x", (unsigned)(unsigned char)b->p[i]);
}

/* Text, or hex behind "x:". */
static size_t bytes_of(char *word)
{
    if (strncmp(word, "x:", 2) != 0)
        return strlen(word);
    size_t n = strlen(word + 2) / 2;
    for (size_t i = 0; i < n; i++) {
        char pair[3] = {word[2 + 2 * i], word[3 + 2 * i], '\0'};
        word[i] = (char)strtoul(pair, NULL, 16);
    }
    return n;
}

static int64_t ns(const char *seconds)
{
    return (int64_t)(strtod(seconds, NULL) * 1e9);
}

struct line {
    char *word[WORDS];
    size_t bytes[WORDS]; /* Of words that are values. */
    size_t count;
    struct muster_bytes value[WORDS];
    size_t values; /* To be said and freed. */
    int64_t number;
    bool has_number;
};

static void fill_pattern(char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (char)(i * 2654435761u >> 13);
}

/* "bigset KEY BYTES", "bigget KEY BYTES": a pattern that both sides know. */
static int big(muster_store *s, struct line *l, bool set, struct muster_error *err)
{
    size_t n = strtoul(l->word[2], NULL, 10);
    char *want = malloc(n + 1);
    struct muster_bytes got = {0};
    if (want == NULL)
        abort();
    fill_pattern(want, n);
    int r = set ? muster_store_set(s, l->word[1], want, n, err)
                : muster_store_get(s, l->word[1], &got, err);
    if (r == 0 && !set) {
        l->number = got.n == n && memcmp(got.p, want, n) == 0;
        l->has_number = true;
    }
    muster_bytes_free(&got);
    free(want);
    return r;
}

static int writing(muster_store *s, struct line *l, struct muster_error *err)
{
    char **w = l->word;
    if (strcmp(w[0], "set") == 0)
        return muster_store_set(s, w[1], w[2], l->bytes[2], err);
    if (strcmp(w[0], "append") == 0)
        return muster_store_append(s, w[1], w[2], l->bytes[2], err);
    if (strcmp(w[0], "push") == 0)
        return muster_store_queue_push(s, w[1], w[2], l->bytes[2], err);
    if (strcmp(w[0], "bigset") == 0)
        return big(s, l, true, err);
    if (strcmp(w[0], "add") == 0) {
        l->has_number = true;
        return muster_store_add(s, w[1], strtoll(w[2], NULL, 10), &l->number, err);
    }
    if (strcmp(w[0], "cas") == 0) {
        l->values = 1;
        return muster_store_compare_set(s, w[1], w[2], l->bytes[2], w[3], l->bytes[3], &l->value[0],
                                        err);
    }
    if (strcmp(w[0], "delete") == 0) {
        bool was = false;
        int r = muster_store_delete(s, w[1], &was, err);
        l->number = was;
        l->has_number = true;
        return r;
    }
    if (strcmp(w[0], "mset") == 0) {
        const char *keys[WORDS];
        size_t n = (l->count - 1) / 2;
        for (size_t i = 0; i < n; i++) {
            keys[i] = w[1 + 2 * i];
            l->value[i] = (struct muster_bytes){w[2 + 2 * i], l->bytes[2 + 2 * i]};
        }
        return muster_store_multi_set(s, keys, l->value, n, err);
    }
    return 1; /* No such command. */
}

static int reading(muster_store *s, struct line *l, struct muster_error *err)
{
    char **w = l->word;
    const char *const *keys = (const char *const *)(w + 1);
    if (strcmp(w[0], "get") == 0) {
        l->values = 1;
        return muster_store_get(s, w[1], &l->value[0], err);
    }
    if (strcmp(w[0], "mget") == 0) {
        l->values = l->count - 1;
        return muster_store_multi_get(s, keys, l->count - 1, l->value, err);
    }
    if (strcmp(w[0], "bigget") == 0)
        return big(s, l, false, err);
    if (strcmp(w[0], "check") == 0) {
        bool all = false;
        int r = muster_store_check(s, keys, l->count - 1, &all, err);
        l->number = all;
        l->has_number = true;
        return r;
    }
    if (strcmp(w[0], "wait") == 0)
        return muster_store_wait(s, keys + 1, l->count - 2, ns(w[1]), err);
    if (strcmp(w[0], "pop") == 0) {
        l->values = 1;
        return muster_store_queue_pop(s, w[1], w[2][0] == '1', &l->value[0], err);
    }
    if (strcmp(w[0], "list") == 0) {
        struct muster_bytes *list = NULL;
        size_t n = 0;
        int r = muster_store_list_keys(s, &list, &n, err);
        l->has_number = true;
        l->number = (int64_t)n;
        for (size_t i = 0; r == 0 && i < n && i < WORDS; i++) {
            l->value[l->values++] = list[i]; /* Given on, so not freed twice. */
            list[i] = (struct muster_bytes){0};
        }
        muster_store_free_keys(list, n);
        return r;
    }
    l->has_number = true;
    if (strcmp(w[0], "len") == 0)
        return muster_store_queue_len(s, w[1], &l->number, err);
    if (strcmp(w[0], "num") == 0)
        return muster_store_num_keys(s, &l->number, err);
    l->has_number = false;
    if (strcmp(w[0], "ping") == 0)
        return muster_store_ping(s, err);
    if (strcmp(w[0], "barrier") == 0)
        return muster_store_barrier(s, w[1], (uint32_t)strtoul(w[2], NULL, 10),
                                    (uint32_t)strtoul(w[3], NULL, 10), ns(w[4]), err);
    return 1;
}

static void run(muster_store *s, char *text)
{
    struct line l = {0};
    struct muster_error err = {0};
    for (char *p = text; l.count < WORDS && p != NULL;) {
        char *end = strchr(p, ' ');
        if (end != NULL)
            *end++ = '\0';
        l.word[l.count] = p;
        l.bytes[l.count] = bytes_of(p);
        l.count++;
        p = end;
    }
    if (strcmp(l.word[0], "timeout") == 0) {
        muster_store_set_timeout(s, ns(l.word[1]));
        printf("ok\n");
        return;
    }
    int r = writing(s, &l, &err);
    if (r == 1)
        r = reading(s, &l, &err);
    if (r != 0) {
        printf("error %d %s\n", r, r == 1 ? "no such command" : err.text);
        return;
    }
    printf("ok");
    if (l.has_number)
        printf(" %" PRId64, l.number);
    for (size_t i = 0; i < l.values; i++) {
        say_bytes(&l.value[i]);
        muster_bytes_free(&l.value[i]);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static char text[1 << 16];
    struct muster_error err = {0};
    muster_store *s = NULL;
    if (argc != 5)
        return 2;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    int r = muster_store_open(argv[1], (uint16_t)strtoul(argv[2], NULL, 10), argv[3], ns(argv[4]),
                              &s, &err);
    if (r < 0) {
        printf("error %d %s\n", r, err.text);
        return 1;
    }
    printf("open\n");
    while (fgets(text, sizeof text, stdin) != NULL) {
        text[strcspn(text, "\n")] = '\0';
        run(s, text);
    }
    muster_store_close(s);
    return 0;
}
