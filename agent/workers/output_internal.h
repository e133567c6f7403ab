/* What the files of workers' output share (output.h). Nobody else includes it.
 *
 * output.c          the loop's side: what the rest of the agent calls
 * output_streams.c  the pipes, files and words of a round, made and freed
 * output_pump.c     the pump's side: a thread that reads, writes and waits for readers
 *
 * Two threads and one lock. The loop's thread makes streams, and puts what it wants into the
 * mailbox: new streams, the round is over, last lines of a rank, finish, give up. The pump's thread
 * owns streams and consoles from then on; it takes the mailbox, reads, writes and polls without the
 * lock, and answers into the mailbox.
 *
 * Streams are in three epoll sets by the console they go to: a console whose reader is behind costs
 * one set left out of poll(), however many workers write there. */
#ifndef MUSTER_AGENT_OUTPUT_INTERNAL_H
#define MUSTER_AGENT_OUTPUT_INTERNAL_H

#include "agent/workers/console.h"
#include "agent/workers/lines.h"
#include "agent/workers/output.h"

enum {
    READ_BYTES = 64 * 1024,            /* Of one stream at once; then the next one's turn. */
    PIPE_BYTES = 1024 * 1024,          /* What a worker may be ahead of us. */
    PIPES_BYTES = 32 * 1048576,        /* Of all pipes: half of what a user may have by default. */
    BEHIND_BYTES = 1024 * 1024,        /* What a console's reader may be behind. */
    TAIL_BYTES = MU_TAIL_BYTES + 2048, /* Last lines, kept of each stream; the first is cut. */
    BATCH = 64,
    WORD_AFTER_S = 5,    /* A reader that is waited for at the end: said after so long… */
    GIVE_UP_AFTER_S = 60 /* …and given up. */
};

enum {
    SET_FILES, /* Streams that go to files alone. */
    SET_STDOUT,
    SET_STDERR,
    SET_COUNT
};

struct stream {
    struct stream *next;
    struct stream **link; /* Who points to us, in the pump's list. */
    uint32_t local_rank;
    int which; /* 0 stdout, 1 stderr */
    int set;
    int pipe_fd;
    int writer_fd; /* Raw: our copy of the worker's end, so that its exit wakes nobody. Else -1. */
    int file_fd;   /* -1: none, or it could not be made for lack of room. */
    bool has_file;
    bool raw;           /* To the console byte by byte: it is the worker's own in all but name. */
    bool over;          /* Every writer is gone: an empty pipe is its end. */
    size_t over_bytes;  /* Read since: no more than a pipe held, or a stranger writes to it. */
    bool ended;         /* Nothing comes any more; kept for its tail until the next round. */
    bool mid_line;      /* The file's last byte is no line's end. */
    bool gap;           /* Something is missing behind it… */
    bool gap_mid_line;  /* So is the last one of what was lost. */
    uint64_t gap_lines; /* Lost since the file's last byte; a piece of a line counts as one. */
    struct lines lines;
    char *prefix;
    int copy_fd; /* filtered_stdout.log of the attempt; -1: none. Shared, see struct copies. */
    struct copies *copies;
    char *tail; /* TAIL_BYTES, once there are any. */
    size_t tail_bytes;
    bool tail_cut;
};

/* What the streams of one round share: the words looked for. The last one frees it. */
struct copies {
    uint32_t users;
    int fd[2];
    struct mu_str *words[2];
    size_t word_count[2];
};

struct want_tail {
    bool wanted;
    uint32_t local_rank;
    uint32_t lines;
    size_t cap;
    char *text;  /* Written by the pump, under the lock, while wanted. */
    int channel; /* And which stream it is of. */
};

struct mailbox {
    struct stream *fresh; /* Singly linked by next. */
    bool round_begins;    /* Forget the ended ones. */
    bool round_over;
    bool finish;
    bool give_up;
    struct want_tail tail;
    struct mu_buf words; /* Our own, for stderr. */
    /* answers */
    bool finished;
    char trouble[512]; /* "": none. */
    uint64_t sent_total;
    uint64_t pending;
    uint64_t lost_file_lines;
    int lost_file_errno;
    uint64_t lost_shown_lines;
    int lost_shown_errno; /* 0: nothing is lost but what a reader did not want any more. */
};

struct output {
    uv_loop_t *loop;
    struct output_events events;
    uv_async_t async;
    uv_timer_t timer; /* While finishing. */
    int open_handles;
    bool started;
    bool finishing;
    bool finished_said;
    bool detached; /* The pump hangs in a write that nobody takes: it ends with the process. */
    uint64_t seen_sent;
    uint32_t still_s; /* Seconds without a byte taken. */
    bool word_said;
    uint64_t *written; /* By local rank; the pump counts. */
    uint32_t written_count;
    int *writers; /* 2 * nproc of the round being started, then as many to be closed after it. */
    uint32_t writer_count;

    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t answered;
    int wake_fd;
    struct mailbox box;

    /* the pump's own */
    struct stream *streams;
    struct console console[2];
    int set_fd[SET_COUNT];
    char *buffer;
    bool over_pending; /* Streams are over and not yet ended. */
    bool finish;
    bool told_file;
    bool told_console[2];
    uint64_t lost_file_lines;
    int lost_file_errno;
};

/* --- output_streams.c --- */
/* How many streams of that round pass through us. */
uint32_t output_count_streams(const struct work_round *r);
/* Their pipes and files, and in o->writers what workers get. pipe_bytes: 0: as the system makes
 * them. *ret: a list by `next`. Nothing is left of them after a failure but o->writers. */
int output_make_streams(struct output *o,
                        struct work_round *round,
                        int pipe_bytes,
                        struct stream **ret,
                        struct mu_err *err);
void output_free_stream(struct stream *s);
void output_free_streams(struct stream *list);
void output_close_fd(int *fd);

/* --- output_pump.c --- */
/* The thread: until all is written or given up after `finish`. arg: the struct output. */
void output_pump(void *arg);

#endif
