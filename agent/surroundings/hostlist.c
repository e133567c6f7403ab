/* Slurm's short form of many hosts: items between commas, each of literal text and bracketed sets
 * of numbers ("rack[0-1]n[01,03-05]"), the last set running fastest. Zeros in front are kept. */
#include <errno.h>
#include <string.h>

#include "agent/surroundings/internal.h"
#include "base/parse.h"

#define SETS_MAX 4u /* Of one item; Slurm's own names have one or two. */

/* One "[...]" of an item: its text without the brackets, and how many numbers it has. */
struct set {
    const char *p;
    size_t n;
    uint64_t count;
};

static bool number(const char **p, const char *end, uint64_t *ret)
{
    const char *start = *p;
    *ret = 0;
    while (*p < end && **p >= '0' && **p <= '9' && *p - start < 18)
        *ret = *ret * 10 + (uint64_t)(*(*p)++ - '0');
    return *p > start;
}

/* One range of a set, "07" or "07-12". Moves on behind it and its comma. */
static bool
range(const char **p, const char *end, uint64_t *ret_from, uint64_t *ret_to, size_t *width)
{
    const char *start = *p;
    if (!number(p, end, ret_from))
        return false;
    *width = (size_t)(*p - start);
    *ret_to = *ret_from;
    if (*p < end && **p == '-') {
        (*p)++;
        if (!number(p, end, ret_to) || *ret_to < *ret_from)
            return false;
    }
    if (*p == end)
        return true;
    if (**p != ',')
        return false;
    (*p)++;
    return *p < end; /* No comma at the end. */
}

static bool count_set(struct set *s)
{
    const char *p = s->p;
    const char *end = s->p + s->n;
    uint64_t from = 0;
    uint64_t to = 0;
    size_t width = 0;
    s->count = 0;
    while (p < end) {
        if (!range(&p, end, &from, &to, &width) || to - from >= MU_NODES_MAX)
            return false;
        s->count += to - from + 1;
    }
    return s->count > 0 && s->count <= MU_NODES_MAX;
}

static bool add(char *ret, size_t *n, char c)
{
    if (*n + 1 >= MU_HOST_BYTES)
        return false;
    ret[(*n)++] = c;
    ret[*n] = '\0';
    return true;
}

/* The index-th number of a set, with the zeros it was written with. */
static bool add_number(const struct set *s, uint64_t index, char *ret, size_t *n)
{
    const char *p = s->p;
    uint64_t from = 0;
    uint64_t to = 0;
    size_t width = 0;
    char digits[24];
    size_t count = 0;
    while (range(&p, s->p + s->n, &from, &to, &width) && index > to - from)
        index -= to - from + 1;
    for (uint64_t v = from + index; v > 0 || count < width || count == 0; v /= 10)
        digits[count++] = (char)('0' + v % 10);
    while (count > 0)
        if (!add(ret, n, digits[--count]))
            return false;
    return true;
}

/* One item of the list: its sets. Returns where it ends, or NULL. */
static const char *read_item(const char *p, struct set *sets, size_t *ret_sets)
{
    const char *start = p;
    *ret_sets = 0;
    while (*p != '\0' && *p != ',') {
        if (*p == ']' || (*p == '[' && *ret_sets == SETS_MAX))
            return NULL;
        if (*p++ != '[')
            continue;
        size_t n = strcspn(p, "[]");
        sets[*ret_sets] = (struct set){.p = p, .n = n};
        if (p[n] != ']' || !count_set(&sets[*ret_sets]))
            return NULL;
        (*ret_sets)++;
        p += n + 1;
    }
    return p > start ? p : NULL;
}

static bool write_item(const char *p,
                       const char *end,
                       const struct set *sets,
                       size_t set_count,
                       uint64_t index,
                       char *ret)
{
    uint64_t which[SETS_MAX] = {0};
    size_t n = 0;
    size_t at = 0;
    for (size_t i = set_count; i-- > 0; index /= sets[i].count)
        which[i] = index % sets[i].count;
    while (p < end) {
        if (*p != '[') {
            if (!add(ret, &n, *p++))
                return false;
            continue;
        }
        if (!add_number(&sets[at], which[at], ret, &n))
            return false;
        p += sets[at++].n + 2;
    }
    return true;
}

int surroundings_hostlist(const char *list, uint64_t index, char *ret, uint64_t *ret_count)
{
    struct set sets[SETS_MAX];
    size_t set_count = 0;
    uint64_t total = 0;
    bool found = false;
    for (const char *p = list;; p++) {
        const char *end = read_item(p, sets, &set_count);
        uint64_t count = 1;
        if (end == NULL)
            return -EINVAL;
        for (size_t i = 0; i < set_count; i++) {
            count *= sets[i].count;
            if (count > MU_NODES_MAX)
                return -EINVAL;
        }
        char first[MU_HOST_BYTES];
        if (!write_item(p, end, sets, set_count, 0, first) || !mu_is_host_name(first))
            return -EINVAL;
        if (!found && index - total < count) {
            if (!write_item(p, end, sets, set_count, index - total, ret))
                return -EINVAL;
            found = true;
        }
        total += count;
        p = end;
        if (*p == '\0')
            break;
    }
    *ret_count = total;
    return found ? 0 : -ERANGE;
}
