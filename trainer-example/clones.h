/* TRAINER_CLONES in front of a hot function: the compiler makes it once for each generation of
 * processors and the loader picks the best at start, so that one binary is fast everywhere.
 * Sanitizers and the picking do not go together. */
#ifndef TRAINER_CLONES_H
#define TRAINER_CLONES_H

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) &&       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TRAINER_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TRAINER_CLONES
#endif

#endif
