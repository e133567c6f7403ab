/* The option table, its help, and the parser. */
#include "trainer-example/options.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    KIND_TEXT,
    KIND_COUNT,
    KIND_NUMBER,
    KIND_CHOICE
};

struct choice {
    const char *word;
    uint32_t value;
};

struct option {
    const char *name, *value;
    enum kind kind;
    size_t at; /* In struct settings. */
    double min, max;
    const struct choice *choices;
    const char *initial; /* As one would type it; NULL: none. */
    const char *help;
};

static const struct choice dtypes[] = {{"float32", MUSTER_F32}, {"float64", MUSTER_F64}, {NULL, 0}};
static const struct choice devices[] = {
    {"auto", DEVICE_AUTO}, {"cpu", DEVICE_CPU}, {"cuda", DEVICE_CUDA}, {NULL, 0}};
static const struct choice backends[] = {
    {"auto", BACKEND_AUTO}, {"tcp", BACKEND_TCP}, {"nccl", BACKEND_NCCL}, {NULL, 0}};
static const struct choice switches[] = {{"on", 1}, {"off", 0}, {NULL, 0}};

/* clang-format off */
#define TEXT(n, v, field, initial, help) \
    { n, v, KIND_TEXT, offsetof(struct settings, field), 0, 0, NULL, initial, help }
#define COUNT(n, field, min, max, initial, help) \
    { n, "N", KIND_COUNT, offsetof(struct settings, field), min, max, NULL, initial, help }
#define NUMBER(n, field, min, max, initial, help) \
    { n, "X", KIND_NUMBER, offsetof(struct settings, field), min, max, NULL, initial, help }
#define CHOICE(n, v, field, choices, initial, help) \
    { n, v, KIND_CHOICE, offsetof(struct settings, field), 0, 0, choices, initial, help }

static const struct option table[] = {
    TEXT("data", "FILE", data, "digits.bin", "images and labels; four fifths are trained on, the rest tests"),
    TEXT("init", "FILE", init, NULL, "first weights; else PyTorch's, made from --seed"),
    COUNT("seed", seed, 0, UINT32_MAX, "0", "of the first weights and of each epoch's order"),
    COUNT("epochs", epochs, 0, 1000000, "10", "how many times all items are seen"),
    COUNT("batch", batch, 1, 65536, "32", "items a rank and step"),
    COUNT("width", width, 1, WIDTH_MAX, "1", "times as many channels and hidden units"),
    CHOICE("dtype", "float32|float64", dtype, dtypes, "float32", "type of all numbers"),
    NUMBER("lr", adamw.lr, 0, 1e6, "1e-3", "AdamW: learning rate"),
    NUMBER("beta1", adamw.beta1, 0, 1, "0.9", "AdamW: memory of gradients, below 1"),
    NUMBER("beta2", adamw.beta2, 0, 1, "0.999", "AdamW: memory of their squares, below 1"),
    NUMBER("eps", adamw.eps, 0, 1e6, "1e-8", "AdamW: added to the divisor"),
    NUMBER("weight-decay", adamw.weight_decay, 0, 1e6, "0.01", "AdamW: weight decay"),
    CHOICE("device", "auto|cpu|cuda", device, devices, "auto", "auto: a GPU where there is one"),
    CHOICE("backend", "auto|tcp|nccl", backend, backends, "auto", "how ranks talk; auto: tcp on CPUs, nccl on GPUs"),
    COUNT("workers", workers, 0, 64, "0", "threads that fill batches ahead; the result is the same"),
    COUNT("bucket-kib", bucket_kib, 1, 1 << 20, "128", "gradients are sent in buckets of this size"),
    CHOICE("overlap", "on|off", overlap, switches, "on", "off: gradients are sent after backward, not during it, to compare"),
    COUNT("timeout", timeout_s, 1, 86400, "300", "seconds after which a wait for other ranks fails"),
    TEXT("checkpoint", "DIR", checkpoint, NULL, "save there, and go on from the newest one there"),
    COUNT("every", every, 0, 1000000000, "0", "steps between checkpoints; 0: one after each epoch"),
    COUNT("keep", keep, 0, 1000000, "2", "newest checkpoints to keep; 0: all"),
    TEXT("events", "FILE", events, NULL, "what happens, as JSON lines; %r is the rank, without it rank 0 alone"),
    COUNT("log-steps", log_steps, 0, 1000000000, "0", "rank 0 says the loss each so many steps; 0: each epoch only"),
};
/* clang-format on */
enum {
    OPTION_COUNT = sizeof table / sizeof table[0],
    HELP_COLUMN = 27
};

static void print_help(void)
{
    puts("usage: trainer [OPTION ...]\n\n"
         "Train a small convolutional network on digits with as many ranks as the launcher "
         "started:\n"
         "    node-agent --standalone --nproc_per_node=2 trainer --data digits.bin\n");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option *o = &table[i];
        int n = printf("  --%s %s", o->name, o->value);
        if (n > HELP_COLUMN - 2)
            n = printf("\n") - 1;
        printf("%*s%s", HELP_COLUMN - n, "", o->help);
        printf(o->initial == NULL ? "\n" : " (%s)\n", o->initial);
    }
    puts("  --help, --version");
}

static int complain(const struct option *o, const char *text)
{
    if (o->kind == KIND_TEXT) {
        fprintf(stderr, "trainer: --%s wants a %s\n", o->name, o->value);
    } else if (o->kind == KIND_CHOICE) {
        fprintf(stderr, "trainer: --%s is %s, not '%s'\n", o->name, o->value, text);
    } else {
        fprintf(stderr, "trainer: --%s is a %s from %.10g to %.10g, not '%s'\n", o->name,
                o->kind == KIND_COUNT ? "whole number" : "number", o->min, o->max, text);
    }
    return -1;
}

static int set(const struct option *o, const char *text, struct settings *s)
{
    void *field = (char *)s + o->at;
    if (o->kind == KIND_TEXT) {
        if (*text == '\0')
            return complain(o, text);
        *(const char **)field = text;
        return 0;
    }
    if (o->kind == KIND_CHOICE) {
        for (const struct choice *c = o->choices; c->word != NULL; c++) {
            if (strcmp(c->word, text) == 0) {
                *(uint32_t *)field = c->value;
                return 0;
            }
        }
        return complain(o, text);
    }
    char *end;
    const double x = strtod(text, &end);
    if (end == text || *end != '\0' || !(x >= o->min && x <= o->max) ||
        (o->kind == KIND_COUNT && x != floor(x)))
        return complain(o, text);
    if (o->kind == KIND_COUNT)
        *(uint32_t *)field = (uint32_t)x;
    else
        *(double *)field = x;
    return 0;
}

/* --name or --name=value; `ret_value` is what stands behind the '=', or NULL. */
static const struct option *find(const char *word, const char **ret_value)
{
    if (strncmp(word, "--", 2) != 0)
        return NULL;
    const size_t n = strcspn(word + 2, "=");
    *ret_value = word[2 + n] == '=' ? word + 2 + n + 1 : NULL;
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (strlen(table[i].name) == n && strncmp(table[i].name, word + 2, n) == 0)
            return &table[i];
    return NULL;
}

static int check_together(const struct settings *s)
{
    if (s->adamw.beta1 == 1 || s->adamw.beta2 == 1) {
        fprintf(stderr, "trainer: --beta1 and --beta2 are below 1\n");
        return -1;
    }
    if (s->device == DEVICE_CPU && s->backend == BACKEND_NCCL) {
        fprintf(stderr,
                "trainer: --backend nccl moves memory of GPUs: use --device cuda with it\n");
        return -1;
    }
    if (s->every != 0 && s->checkpoint == NULL) {
        fprintf(stderr, "trainer: --every says when to save; --checkpoint DIR must say where\n");
        return -1;
    }
    return 0;
}

int settings_parse(int argc, char *argv[], struct settings *ret)
{
    struct settings s = {0};
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (table[i].initial != NULL)
            (void)set(&table[i], table[i].initial,
                      &s); /* The table's own words are right: a test. */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            print_help();
            return 1;
        }
        if (strcmp(argv[i], "--version") == 0) {
            puts("trainer " TRAINER_VERSION);
            return 1;
        }
        const char *value = NULL;
        const struct option *o = find(argv[i], &value);
        if (o == NULL) {
            fprintf(stderr, "trainer: no option '%s': see --help\n", argv[i]);
            return -1;
        }
        if (value == NULL && ++i < argc)
            value = argv[i];
        if (value == NULL) {
            fprintf(stderr, "trainer: --%s wants %s behind it\n", o->name, o->value);
            return -1;
        }
        if (set(o, value, &s) < 0)
            return -1;
    }
    if (check_together(&s) < 0)
        return -1;
    *ret = s;
    return 0;
}
