/* JSON lines. */
#include "trainer-example/events.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "trainer-example/failure.h"

int events_open(const char *name, uint32_t rank, FILE **ret, struct muster_error *err)
{
    char path[4096];
    *ret = NULL;
    if (name == NULL)
        return 0;
    const char *mark = strstr(name, "%r");
    if (mark == NULL && rank != 0)
        return 0;
    const int before = mark == NULL ? (int)strlen(name) : (int)(mark - name);
    char number[16] = "";
    if (mark != NULL)
        (void)snprintf(number, sizeof number, "%u", rank); /* At most ten digits. */
    if (snprintf(path, sizeof path, "%.*s%s%s", before, name, number,
                 mark == NULL ? "" : mark + 2) >= (int)sizeof path)
        return failure(err, -ENAMETOOLONG, "the name of --events is too long");
    *ret = fopen(path, "ae");
    if (*ret == NULL)
        return failure(err, -errno, "open '%s' (--events): %s", path, strerror(errno));
    (void)setvbuf(*ret, NULL, _IOLBF, 0); /* Whoever reads meanwhile sees whole lines. */
    return 0;
}

void events_add(FILE *f, const char *event, const char *fields, ...)
{
    if (f == NULL)
        return;
    va_list args;
    va_start(args, fields);
    fprintf(f, "{\"event\":\"%s\",", event);
    vfprintf(f, fields, args);
    fputs("}\n", f);
    va_end(args);
}
