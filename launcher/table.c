#include "launcher/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "launcher/words.h"

#define BETWEEN 2 /* Blanks between two columns. */

struct cell {
    size_t at; /* Of its text in `text`. */
    size_t n;
    enum cli_colour colour;
};

struct cli_table {
    const struct mu_mem *mem;
    const char *const *names;
    uint32_t column_count;
    struct mu_buf text;
    struct mu_buf cells; /* struct cell, row by row. */
};

static const char *const codes[] = {
    [CLI_PLAIN] = "",   [CLI_BOLD] = "1",    [CLI_DIM] = "2",
    [CLI_GREEN] = "32", [CLI_YELLOW] = "33", [CLI_RED] = "31",
};

struct cli_table *
cli_table_new(const struct mu_mem *mem, const char *const *names, uint32_t column_count)
{
    MU_ASSERT(column_count <= CLI_COLUMNS_MAX);
    struct cli_table *t = mu_zalloc(mem, sizeof *t);
    if (t == NULL)
        return NULL;
    t->mem = mem;
    t->names = names;
    t->column_count = column_count;
    mu_buf_init(&t->text, mem);
    mu_buf_init(&t->cells, mem);
    return t;
}

void cli_table_free(struct cli_table *t)
{
    if (t == NULL)
        return;
    mu_buf_fini(&t->text);
    mu_buf_fini(&t->cells);
    mu_mem_free(t->mem, t);
}

void cli_cell(struct cli_table *t, enum cli_colour colour, const char *text)
{
    struct cell c = {t->text.n, 0, colour};
    cli_add_plain(&t->text, text);
    c.n = t->text.n - c.at;
    (void)mu_buf_add(&t->cells, &c, sizeof c);
}

void cli_cellf(struct cli_table *t, enum cli_colour colour, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cli_cell(t, colour, text);
}

/* Characters, as a terminal counts those of host names and sentences: combining and wide ones are
 * not told apart. */
static uint32_t columns_of(const char *p, size_t n)
{
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)p[i] & 0xc0) != 0x80;
    return count;
}

static struct cell cell_at(const struct cli_table *t, size_t row, uint32_t column)
{
    struct cell c;
    memcpy(&c, t->cells.p + (row * t->column_count + column) * sizeof c, sizeof c);
    return c;
}

static void add_blanks(struct mu_buf *b, uint32_t n)
{
    while (n-- > 0)
        (void)mu_buf_adds(b, " ");
}

static void add_code(struct mu_buf *b,
                     const struct cli_style *style,
                     enum cli_colour colour,
                     const char *p,
                     size_t n)
{
    bool coded = style->colour && colour != CLI_PLAIN && n > 0;
    if (coded)
        (void)mu_buf_addf(b, "\033[%sm", codes[colour]);
    (void)mu_buf_add(b, p, n);
    if (coded)
        (void)mu_buf_adds(b, "\033[0m");
}

void cli_add_coloured(struct mu_buf *b,
                      const struct cli_style *style,
                      enum cli_colour colour,
                      const char *text)
{
    struct mu_buf plain;
    mu_buf_init(&plain, b->mem);
    cli_add_plain(&plain, text);
    add_code(b, style, colour, mu_buf_cstr(&plain), plain.n);
    mu_buf_fini(&plain);
}

static void add_row(const struct cli_table *t,
                    const struct cli_style *style,
                    const uint32_t *width,
                    uint32_t last,
                    int64_t row,
                    struct mu_buf *out)
{
    for (uint32_t c = 0; c <= last; c++) {
        if (width[c] == 0)
            continue;
        struct cell cell =
            row < 0 ? (struct cell){0, strlen(t->names[c]), CLI_DIM} : cell_at(t, (size_t)row, c);
        const char *p = row < 0 ? t->names[c] : t->text.p + cell.at;
        add_code(out, style, cell.colour, p, cell.n);
        if (c != last)
            add_blanks(out, width[c] - columns_of(p, cell.n) + BETWEEN);
    }
}

void cli_table_draw(const struct cli_table *t,
                    const struct cli_style *style,
                    uint32_t indent,
                    struct mu_buf *out)
{
    uint32_t width[CLI_COLUMNS_MAX] = {0};
    uint32_t last = 0;
    if (t->cells.oom || t->text.oom) {
        out->oom = true;
        return;
    }
    size_t rows = t->cells.n / sizeof(struct cell) / t->column_count;
    for (uint32_t c = 0; c < t->column_count; c++) {
        for (size_t r = 0; r < rows; r++) {
            struct cell cell = cell_at(t, r, c);
            uint32_t n = cell.n > 0 ? columns_of(t->text.p + cell.at, cell.n) : 0;
            width[c] = n > width[c] ? n : width[c];
        }
        uint32_t head = columns_of(t->names[c], strlen(t->names[c]));
        if (width[c] > 0) {
            width[c] = head > width[c] ? head : width[c];
            last = c;
        }
    }
    for (int64_t r = -1; r < (int64_t)rows; r++) {
        add_blanks(out, indent);
        add_row(t, style, width, last, r, out);
        while (out->n > 0 && out->p[out->n - 1] == ' ')
            out->n--;
        (void)mu_buf_adds(out, "\n");
    }
}

/* How much of one line fits: bytes, with the escape sequences that lie before the cut. */
static size_t fitting(const char *p, size_t n, uint32_t width)
{
    uint32_t shown = 0;
    size_t i = 0;
    while (i < n) {
        if (p[i] == '\033') {
            const char *m = memchr(p + i, 'm', n - i);
            i = m != NULL ? (size_t)(m - p) + 1 : n;
            continue;
        }
        if (shown == width)
            return i;
        size_t len = mu_utf8_len(p + i, n - i);
        i += len > 0 ? len : 1;
        shown++;
    }
    return n;
}

void cli_add_cut(struct mu_buf *out, const struct cli_style *style, const char *text)
{
    for (const char *p = text; *p != '\0';) {
        size_t n = strcspn(p, "\n");
        size_t keep = style->width > 0 ? fitting(p, n, style->width) : n;
        (void)mu_buf_add(out, p, keep);
        if (keep < n && style->colour)
            (void)mu_buf_adds(out, "\033[0m");
        (void)mu_buf_adds(out, "\n");
        p += n + (p[n] == '\n');
    }
}
