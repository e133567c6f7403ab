/* The mark of a life with live rounds: a file that exists while any job has one. A server that
 * finds it at its start knows that its former life ended while workers ran: their agents are on
 * their way back, and a round that began before they were heard would run beside theirs. The file
 * says nothing else, so its loss costs no more than that caution.
 *
 * A life that was killed, and has no successor at its port, leaves its mark for ever; so a server
 * that starts takes those away that nobody has renewed for a day. The living renew theirs. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "rendezvous/server/internal.h"

#define RENEWED_EVERY_NS (INT64_C(600) * MU_NS_PER_S)
#define FORGOTTEN_AFTER_MS (INT64_C(86400) * 1000)

/* Those of other ports, in the folder that servers share where no --state-dir gives each its own.
 */
static void sweep(const char *folder, const char *own)
{
    DIR *d = opendir(folder);
    struct stat st;
    if (d == NULL)
        return; /* None is there yet. */
    int64_t old_s = (mu_unix_ms() - FORGOTTEN_AFTER_MS) / 1000;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        if (fnmatch("rdzv-*.live", e->d_name, 0) == 0 && strcmp(e->d_name, own) != 0 &&
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
            st.st_mtime < old_s)
            (void)unlinkat(dirfd(d), e->d_name, 0); /* Another's, which we may not: stays. */
    (void)closedir(d);
}

bool mark_find(struct srv *s)
{
    if (s->state_dir == NULL || s->state_dir[0] == '\0')
        return false;
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "%s/rdzv-%u.live", s->state_dir, s->port);
    s->mark_path = b.oom ? NULL : mu_strdup(mu_mem_default(), mu_buf_cstr(&b));
    mu_buf_fini(&b);
    if (s->mark_path == NULL)
        return false;
    sweep(s->state_dir, strrchr(s->mark_path, '/') + 1);
    s->marked = access(s->mark_path, F_OK) == 0;
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

/* So that it is not taken for one that was left behind. */
static void renew(struct srv *s)
{
    if (s->now_ns < s->mark_renewed_ns + RENEWED_EVERY_NS)
        return;
    s->mark_renewed_ns = s->now_ns;
    (void)utimensat(AT_FDCWD, s->mark_path, NULL, AT_SYMLINK_NOFOLLOW); /* Gone: no more is lost. */
}

void mark_update(struct srv *s)
{
    if (s->mark_path == NULL)
        return;
    if (s->live_rounds > 0 && !s->marked) {
        make(s);
    } else if (s->live_rounds > 0) {
        renew(s);
    } else if (s->live_rounds == 0 && s->marked && s->now_ns >= s->not_before_ns) {
        (void)unlink(s->mark_path); /* Left behind, it costs the next life one lease of waiting. */
        s->marked = false;
    }
}
