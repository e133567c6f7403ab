/* Stands in for libFuzzer where the compiler has none: every file of the given folders goes through
 * the fuzzer's entry point once. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        return -1;
    }
    size_t n = 0;
    size_t cap = 1 << 16;
    uint8_t *bytes = malloc(cap);
    while (bytes != NULL) {
        n += fread(bytes + n, 1, cap - n, f);
        if (n < cap)
            break;
        cap *= 2;
        uint8_t *more = realloc(bytes, cap);
        if (more == NULL)
            free(bytes);
        bytes = more;
    }
    (void)fclose(f);
    if (bytes == NULL)
        return -1;
    /* A block of exactly this size, so that a sanitizer sees one byte too many. */
    uint8_t *exact = malloc(n > 0 ? n : 1);
    if (exact != NULL) {
        memcpy(exact, bytes, n);
        (void)LLVMFuzzerTestOneInput(exact, n);
    }
    free(exact);
    free(bytes);
    return exact != NULL ? 0 : -1;
}

int main(int argc, char **argv)
{
    int replayed = 0;
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (folder == NULL) {
            perror(argv[i]);
            return 1;
        }
        for (const struct dirent *e = readdir(folder); e != NULL; e = readdir(folder)) {
            char path[4096];
            if (e->d_name[0] == '.')
                continue;
            (void)snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            failed += replay_file(path) < 0;
            replayed++;
        }
        (void)closedir(folder);
    }
    (void)printf("%d inputs, %d unreadable\n", replayed, failed);
    return failed > 0 || replayed == 0; /* Nothing replayed is nothing tested. */
}
