/* What a job's workers print, as the server tells it: GET /jobs/ID/logs, one JSON object a line.
 * Reading such lines, knowing which were shown already, and making them text. Pure but for cJSON.
 */
#ifndef MUSTER_LAUNCHER_LINES_H
#define MUSTER_LAUNCHER_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "base/str.h"

enum cli_said {
    CLI_SAID_LINE,    /* A line of a worker or its agent. */
    CLI_SAID_BEAT,    /* Nothing, but the server is there. */
    CLI_SAID_END,     /* The job has ended, or all was sent. */
    CLI_SAID_NONSENSE /* Not of this interface. */
};

struct cli_line {
    int64_t unix_ms;
    int64_t rank;     /* -1: the agent itself. */
    bool is_error;    /* stderr */
    const char *host; /* Borrowed from the tree, as `text` is. */
    const char *text;
};

/* How a job ended, from the last line. */
struct cli_end {
    char state[16];      /* "": not told. */
    int64_t exit_status; /* -1: not told. */
};

/* One line of the answer, without its newline. *ret_tree, which is the caller's (cJSON_Delete), is
 * what `ret` borrows from; NULL for a beat and for nonsense. */
enum cli_said
cli_line_read(struct mu_str s, cJSON **ret_tree, struct cli_line *ret, struct cli_end *ret_end);

/* Which lines were shown. A stream that was cut is asked for anew, from some time before the cut:
 * of each source (host, rank, stream) lines come in order, so those are dropped that lie before the
 * last shown one, and as many of its own millisecond as were shown. Behind the first that is new,
 * none of that source is dropped, so that a clock that was set back loses nothing. */
struct cli_seen;
struct cli_seen *cli_seen_new(const struct mu_mem *mem);
void cli_seen_free(struct cli_seen *s);

/* The stream begins anew. */
void cli_seen_restart(struct cli_seen *s);

/* Is that line new? It is taken as shown then. Without memory: yes. */
bool cli_seen_is_new(struct cli_seen *s, const struct cli_line *line);

/* From when on everything must be asked for again; -1: from the beginning. */
int64_t cli_seen_since_ms(const struct cli_seen *s);

struct cli_line_style {
    bool colour;   /* The prefix, one for each rank. */
    bool terminal; /* Nothing that a terminal would obey gets through. */
};

/* "[3] text\n", and for what an agent says "[n1] text\n". */
void cli_line_draw(struct mu_buf *out,
                   const struct cli_line *line,
                   const struct cli_line_style *style);

/* The exit status of muster for a job that ended so. */
int cli_end_status(const struct cli_end *end);

#endif
