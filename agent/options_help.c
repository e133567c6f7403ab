/* Usage, --help and the man page's OPTIONS, all printed from the table. */
#include <string.h>

#include "agent/options_table.h"

#define WIDTH 100
#define DOC_COLUMN 26

static void one_usage(struct mu_buf *out, const struct option_row *row, size_t *column)
{
    struct mu_buf word;
    mu_buf_init(&word, out->mem);
    if (row->letter != 0)
        (void)mu_buf_addf(&word, "[-%c", row->letter);
    else
        (void)mu_buf_addf(&word, "[--%s", row->name);
    if (row->value != NULL)
        (void)mu_buf_addf(&word, " %s", row->value);
    (void)mu_buf_adds(&word, "]");
    if (*column + word.n + 1 > WIDTH) {
        (void)mu_buf_adds(out, "\n      ");
        *column = 6;
    }
    (void)mu_buf_addf(out, " %s", mu_buf_cstr(&word));
    *column += word.n + 1;
    mu_buf_fini(&word);
}

static void usage(struct mu_buf *out, const char *name)
{
    size_t column = strlen(name) + 7;
    (void)mu_buf_addf(out, "usage: %s", name);
    for (size_t i = 0; i < option_count; i++)
        one_usage(out, &option_rows[i], &column);
    (void)mu_buf_adds(out, "\n       program [argument ...]\n");
}

/* Words of `doc`, broken at WIDTH, each line behind DOC_COLUMN blanks. The cursor is at `column`.
 */
static void wrapped(struct mu_buf *out, const char *doc, size_t column)
{
    while (*doc != '\0') {
        size_t n = strcspn(doc, " ");
        if (column + n + 1 > WIDTH) {
            (void)mu_buf_addf(out, "\n%*s", DOC_COLUMN, "");
            column = DOC_COLUMN;
        }
        if (column > DOC_COLUMN) {
            (void)mu_buf_adds(out, " ");
            column++;
        }
        (void)mu_buf_add(out, doc, n);
        column += n;
        doc += n + strspn(doc + n, " ");
    }
    (void)mu_buf_adds(out, "\n");
}

static void one_help(struct mu_buf *out, const struct option_row *row)
{
    size_t at = out->n;
    if (row->letter != 0)
        (void)mu_buf_addf(out, "  -%c, --%s", row->letter, row->name);
    else
        (void)mu_buf_addf(out, "  --%s", row->name);
    if (row->value != NULL)
        (void)mu_buf_addf(out, " %s", row->value);
    size_t column = out->n - at;
    if (column + 2 > DOC_COLUMN)
        (void)mu_buf_addf(out, "\n%*s", DOC_COLUMN, "");
    else
        (void)mu_buf_addf(out, "%*s", (int)(DOC_COLUMN - column), "");
    wrapped(out, row->doc, DOC_COLUMN);
    if (row->shown != NULL)
        (void)mu_buf_addf(out, "%*sDefault: %s.\n", DOC_COLUMN, "", row->shown);
}

void agent_options_help(struct mu_buf *out, const char *name)
{
    usage(out, name);
    (void)mu_buf_adds(out,
                      "\nStarts the workers of one node, with those of the other nodes, and sees "
                      "that they run.\n\nFlags of torchrun, with its meaning. Each may be "
                      "written with underscores, shortened as long as\nit stays unique, and set "
                      "by a variable PET_<NAME>:\n\n");
    for (size_t i = 0; i < option_count; i++)
        if ((option_rows[i].flags & OPTION_OWN) == 0)
            one_help(out, &option_rows[i]);
    (void)mu_buf_adds(out, "\nFlags of muster:\n\n");
    for (size_t i = 0; i < option_count; i++)
        if ((option_rows[i].flags & OPTION_OWN) != 0)
            one_help(out, &option_rows[i]);
    (void)mu_buf_adds(
        out, "\nThe first word that is no flag is the program; what follows is its own. "
             "$local_rank in it\nbecomes the worker's local rank.\n"
             "Exit status: 0 all workers exited with 0; 1 failure; 2 usage; 65 the same failure "
             "came twice.\n\nPYTHON_EXEC names the Python that runs scripts and modules; "
             "else it is the virtual environment's\nthat muster was installed into, else "
             "python3 from PATH.\n");
}

/* Text for roff: a backslash and a leading dot or quote would be commands, a dash a hyphen. */
static void roff(struct mu_buf *out, const char *s)
{
    for (; *s != '\0'; s++) {
        if (*s == '\\')
            (void)mu_buf_adds(out, "\\e");
        else if (*s == '-')
            (void)mu_buf_adds(out, "\\-");
        else
            (void)mu_buf_add(out, s, 1);
    }
}

static void one_man(struct mu_buf *out, const struct option_row *row)
{
    (void)mu_buf_adds(out, ".TP\n");
    if (row->letter != 0)
        (void)mu_buf_addf(out, "\\fB\\-%c\\fR, ", row->letter);
    (void)mu_buf_adds(out, "\\fB\\-\\-");
    roff(out, row->name);
    (void)mu_buf_adds(out, "\\fR");
    if (row->value != NULL) {
        (void)mu_buf_adds(out, " \\fI");
        roff(out, row->value);
        (void)mu_buf_adds(out, "\\fR");
    }
    (void)mu_buf_adds(out, "\n");
    roff(out, row->doc);
    if (row->shown != NULL) {
        (void)mu_buf_adds(out, " Default: ");
        roff(out, row->shown);
        (void)mu_buf_adds(out, ".");
    }
    (void)mu_buf_adds(out, "\n");
}

void agent_options_man(struct mu_buf *out)
{
    (void)mu_buf_adds(out, ".SS Flags of torchrun\n");
    for (size_t i = 0; i < option_count; i++)
        if ((option_rows[i].flags & OPTION_OWN) == 0)
            one_man(out, &option_rows[i]);
    (void)mu_buf_adds(out, ".SS Flags of muster\n");
    for (size_t i = 0; i < option_count; i++)
        if ((option_rows[i].flags & OPTION_OWN) != 0)
            one_man(out, &option_rows[i]);
}

bool agent_option_text(size_t i, struct mu_option_text *ret)
{
    if (i >= option_count)
        return false;
    const struct option_row *row = &option_rows[i];
    *ret = (struct mu_option_text){
        .name = row->name, .letter = row->letter, .value = row->value, .doc = row->doc};
    return true;
}
