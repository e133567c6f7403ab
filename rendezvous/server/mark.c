/* The mark of a life with live rounds: a file that exists while any job has one. A server that
 * finds it at its start knows that its former life ended while workers ran: their agents are on
 * their way back, and a round that began before they were heard would run beside theirs. The file
 * says nothing else, so its loss costs no more than that caution. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "rendezvous/server/internal.h"

bool mark_find(struct srv *s)
{
    if (s->state_dir == NULL || s->state_dir[0] == '\0')
        return false;
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "%s/rdzv-%u.live", s->state_dir, s->port);
    s->mark_path = b.oom ? NULL : mu_strdup(mu_mem_default(), mu_buf_cstr(&b));
    mu_buf_fini(&b);
    s->marked = s->mark_path != NULL && access(s->mark_path, F_OK) == 0;
    return s->marked;
}

/* Without a place for it the server works on, but a restart in the middle of a round is less
 * careful. */
static void cannot(struct srv *s)
{
    mu_log(MU_WARN, "mark.failed",
           "path=\"%s\" error=\"%s\" text=\"a restart of this server would not know of running "
           "rounds; choose another --state-dir\"",
           s->mark_path, strerror(errno));
    mu_mem_free(mu_mem_default(), s->mark_path);
    s->mark_path = NULL; /* Said once. */
}

static void make(struct srv *s)
{
    if (mkdir(s->state_dir, 0700) < 0 && errno != EEXIST) {
        cannot(s);
        return;
    }
    MU_CLEANUP(mu_closep)
    int fd = open(s->mark_path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        cannot(s);
    else
        s->marked = true;
}

void mark_update(struct srv *s)
{
    if (s->mark_path == NULL)
        return;
    if (s->live_rounds > 0 && !s->marked) {
        make(s);
    } else if (s->live_rounds == 0 && s->marked && s->now_ns >= s->not_before_ns) {
        (void)unlink(s->mark_path); /* Left behind, it costs the next life one lease of waiting. */
        s->marked = false;
    }
}
