/* Inside the command line reader: the table's rows and what its files share. Not for others. */
#ifndef MUSTER_AGENT_OPTIONS_TABLE_H
#define MUSTER_AGENT_OPTIONS_TABLE_H

#include "agent/options.h"

struct reading;
struct option_row;

/* Take the text of a flag or variable `what` into the options. Returns 0, or fails as the parser
 * does. */
typedef int option_set_fn(struct reading *rd, const char *text, const char *what);

enum {
    OPTION_OWN = 1,    /* Not torchrun's: yields to torchrun's flags where a prefix fits both. */
    OPTION_NO_PET = 2, /* No PET_ variable. */
    OPTION_WORDS = 4,  /* `value` is a list of words, the only ones allowed on the command line. */
    OPTION_ACTS = 8    /* --help and --version: acts where it stands. */
};

struct option_row {
    const char *name;   /* Long name with dashes. */
    char letter;        /* Short name, or 0. */
    unsigned flags;     /* OPTION_… */
    const char *value;  /* What to write behind it; NULL: a switch. OPTION_WORDS: "a|b|c". */
    option_set_fn *set; /* Called with the last text given, or "1" for a switch that is on. */
    const char *shown;  /* Default, for people; NULL: none. */
    const char *doc;    /* Sentences for --help and the man page. */
};

#define OPTIONS_MAX 72

/* One text per row, from the command line or a variable; NULL: neither. */
struct reading {
    struct agent_options *o;
    const struct agent_machine *machine;
    char *const *envp;
    struct mu_buf *notes;
    struct mu_err *err;
    int exit_code;
    const char *text[OPTIONS_MAX];
    bool from_env[OPTIONS_MAX];

    /* Values that only the later checks want. */
    const char *backend;
    const char *endpoint;
    const char *rdzv;
    const char *conf;
    const char *master_addr;
    const char *master_port;
    const char *nproc;
    const char *run_id;
    const char *tee_text;
    const char *redirects_text;
    const char *filter_text;
    const char *hostfile;
    const char *chaos;
    enum surroundings_kind surroundings;
    bool standalone;
    bool module;
    bool no_python;
    bool run_path;
    bool node_rank_given;
};

extern const struct option_row option_rows[];
extern const size_t option_count;

/* The row of a long name (dashes), or NULL. */
const struct option_row *option_find(const char *name);
/* The row of a name that the code itself spells: it is there. */
const struct option_row *option_row_of(const char *name);

/* Set the sentence and the exit status. Returns -EINVAL. */
int option_fail(struct reading *rd, int exit_code, const char *fmt, ...) MU_PRINTF(3, 4);
/* A failure whose sentence is already there. */
int option_fail_as(struct reading *rd, int exit_code);
void option_note(struct reading *rd, const char *fmt, ...) MU_PRINTF(2, 3);

/* The variable's value, or NULL. */
const char *option_env(char *const *envp, const char *name);

/* A whole number as Python's int() reads it: blanks around, a sign, single underscores between
 * digits. */
int option_int(struct reading *rd,
               int exit_code,
               const char *text,
               int64_t min,
               int64_t max,
               const char *what,
               int64_t *ret);

/* What was left open, as the launcher tells it (after every row was read, before anything is made
 * of it). */
int option_take_surroundings(struct reading *rd);

/* Is --service on the command line? Asked before the values are read. */
bool option_wants_service(const struct reading *rd);
/* Service mode's own checks, in the place of those of a job. */
int option_resolve_service(struct reading *rd);

/* Which rendezvous is meant (after every row was read), and its settings. */
int option_resolve_rdzv(struct reading *rd);

#endif
