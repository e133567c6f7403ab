/* main() for a fuzz target where there is no libFuzzer: runs each file of the folders it is given,
 * and, for a seed, as many inputs made from them as asked for: replay FOLDER... [--mutate N SEED]
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/parse.h"
#include "base/str.h"

#define INPUTS_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct inputs {
    struct mu_buf one[INPUTS_MAX];
    size_t count;
};

static void load(struct inputs *in, const char *path)
{
    FILE *f = fopen(path, "rb");
    MU_ASSERT(f != NULL && in->count < INPUTS_MAX);
    struct mu_buf *b = &in->one[in->count++];
    char part[4096];
    mu_buf_init(b, mu_mem_default());
    for (size_t n = 0; (n = fread(part, 1, sizeof part, f)) > 0;)
        MU_ASSERT(mu_buf_add(b, part, n) == 0);
    (void)fclose(f); /* It was only read. */
}

static void load_folder(struct inputs *in, const char *folder)
{
    DIR *d = opendir(folder);
    const struct dirent *e = NULL;
    MU_ASSERT(d != NULL);
    while ((e = readdir(d)) != NULL) {
        char path[1024];
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        load(in, path);
    }
    (void)closedir(d); /* It was only read. */
}

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static size_t below(uint64_t *x, size_t n)
{
    return n == 0 ? 0 : (size_t)(next_random(x) % n);
}

/* Two inputs cut and joined, with a few bytes changed. */
static void mutate(const struct inputs *in, uint64_t *x, struct mu_buf *ret)
{
    const struct mu_buf *a = &in->one[below(x, in->count)];
    const struct mu_buf *b = &in->one[below(x, in->count)];
    size_t at = below(x, b->n);
    mu_buf_reset(ret);
    MU_ASSERT(mu_buf_add(ret, a->p, (next_random(x) & 1) != 0 ? a->n : below(x, a->n)) == 0);
    MU_ASSERT(mu_buf_add(ret, b->p == NULL ? "" : b->p + at, b->n - at) == 0);
    for (size_t i = below(x, 6); i > 0 && ret->n > 0; i--) {
        char *p = &ret->p[below(x, ret->n)];
        *p = (char)((next_random(x) & 1) != 0 ? next_random(x) : (uint64_t)*p ^ 1U << below(x, 8));
    }
}

int main(int argc, char **argv)
{
    static struct inputs in;
    uint32_t rounds = 0;
    uint32_t seed = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mutate") == 0 && i + 2 < argc) {
            MU_ASSERT(mu_parse_u32(argv[i + 1], 0, UINT32_MAX, "N", &rounds, NULL) == 0);
            MU_ASSERT(mu_parse_u32(argv[i + 2], 0, UINT32_MAX, "SEED", &seed, NULL) == 0);
            i += 2;
        } else {
            load_folder(&in, argv[i]);
        }
    }
    MU_ASSERT(in.count > 0);
    for (size_t i = 0; i < in.count; i++)
        (void)LLVMFuzzerTestOneInput((const uint8_t *)in.one[i].p, in.one[i].n);
    struct mu_buf made = {.mem = mu_mem_default()};
    uint64_t x = (uint64_t)seed * 2 + 1;
    for (uint32_t i = 0; i < rounds; i++) {
        mutate(&in, &x, &made);
        (void)LLVMFuzzerTestOneInput((const uint8_t *)made.p, made.n);
    }
    printf("%zu inputs, %u made from them with seed %u\n", in.count, rounds, seed);
    mu_buf_fini(&made);
    for (size_t i = 0; i < in.count; i++)
        mu_buf_fini(&in.one[i]);
    return 0;
}
