/* Lines to stderr, each in one write, so that those of many ranks do not run into each other. */
#include <muster/progress.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "worker-sdk/src/core/sdk.h"

static void write_line(const char *prefix, const char *format, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    size_t head = strlen(prefix);
    size_t bytes = head + (n < 0 ? 0 : (size_t)n) + 2; /* A line's end and a NUL. */
    char *text = mu_alloc(mu_mem_default(), bytes);
    if (text == NULL)
        return;
    memcpy(text, prefix, head);
    n = vsnprintf(text + head, bytes - head, format, ap);
    size_t end = head + (n < 0 ? 0 : (size_t)n);
    if (end == head || text[end - 1] != '\n')
        text[end++] = '\n';
    if (write(STDERR_FILENO, text, end) < 0) {
        /* Nowhere left to say so. */
    }
    mu_mem_free(mu_mem_default(), text);
}

void muster_log(const muster *m, bool all_ranks, const char *format, ...)
{
    char prefix[24] = "";
    va_list ap;
    if (!all_ranks && m->env.rank != 0)
        return;
    if (all_ranks)
        (void)snprintf(prefix, sizeof prefix, "[rank %u] ", m->env.rank);
    va_start(ap, format);
    write_line(prefix, format, ap);
    va_end(ap);
}
