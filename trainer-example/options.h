/* What can be chosen: one struct, filled from one table (options.c) that also prints --help. */
#ifndef TRAINER_OPTIONS_H
#define TRAINER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "trainer-example/model.h"

enum device {
    DEVICE_AUTO,
    DEVICE_CPU,
    DEVICE_CUDA
};

enum backend {
    BACKEND_AUTO,
    BACKEND_TCP,
    BACKEND_NCCL
};

struct settings {
    const char *data;
    const char *init;       /* NULL: made from the seed. */
    const char *checkpoint; /* NULL: none. */
    const char *events;     /* NULL: none. */
    uint32_t epochs, batch, width, seed;
    uint32_t dtype;           /* enum muster_dtype */
    uint32_t device, backend; /* enums above */
    uint32_t overlap;         /* 1: gradients are sent while backward goes on. */
    uint32_t workers, every, keep, log_steps, bucket_kib, timeout_s;
    struct adamw adamw;
};

/* 0: go on; 1: --help or --version was printed; -1: one sentence was printed to stderr (exit status
 * 2). */
int settings_parse(int argc, char *argv[], struct settings *ret);

#endif
