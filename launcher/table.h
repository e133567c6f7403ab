/* Columns that line up. Pure. */
#ifndef MUSTER_LAUNCHER_TABLE_H
#define MUSTER_LAUNCHER_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

#define CLI_COLUMNS_MAX 10

enum cli_colour {
    CLI_PLAIN,
    CLI_BOLD,
    CLI_DIM,
    CLI_GREEN,
    CLI_YELLOW,
    CLI_RED
};

/* How a page is drawn. */
struct cli_style {
    bool colour;
    bool terminal;  /* A person looks: where there is nothing to show, that is said. */
    uint32_t width; /* Columns of the terminal: longer lines are cut; 0: no limit. */
    uint32_t lines; /* Lines that a list may take before it is cut short; 0: no limit. */
};

struct cli_table;

/* `names` are the heads of `column_count` columns; borrowed. Returns NULL without memory. */
struct cli_table *
cli_table_new(const struct mu_mem *mem, const char *const *names, uint32_t column_count);
void cli_table_free(struct cli_table *t);

/* The next cell, row by row. `text` is copied and made plain (cli_add_plain). */
void cli_cell(struct cli_table *t, enum cli_colour colour, const char *text);
void cli_cellf(struct cli_table *t, enum cli_colour colour, const char *fmt, ...) MU_PRINTF(3, 4);

/* Heads and rows, each line behind `indent` blanks. Columns that are empty in every row are left
 * out. Out of memory shows in out->oom. */
void cli_table_draw(const struct cli_table *t,
                    const struct cli_style *style,
                    uint32_t indent,
                    struct mu_buf *out);

/* `text` in a colour, where the style has any. */
void cli_add_coloured(struct mu_buf *b,
                      const struct cli_style *style,
                      enum cli_colour colour,
                      const char *text);

/* The lines of `text` cut to the style's width, colours closed. */
void cli_add_cut(struct mu_buf *out, const struct cli_style *style, const char *text);

#endif
