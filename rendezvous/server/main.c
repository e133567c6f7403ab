/* rdzv-server: one port for store clients, agents and HTTP. Wires its options to a server, and
 * returns. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <uv.h>

#include "base/addr.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/manager.h"
#include "rendezvous/server/options.h"
#include "rendezvous/server/server.h"

#define PROGRAM "rdzv-server"

enum exit_status {
    EXIT_GOOD = 0,
    EXIT_TROUBLE = 1,
    EXIT_USAGE = 2
};

/* --- from options to a server's settings --- */

/* systemd's folder, the session's, or the system's when we may write there. `dst` has room for
 * `cap`. */
static const char *default_state_dir(char *dst, size_t cap)
{
    const char *dir = getenv("RUNTIME_DIRECTORY"); /* systemd: several are separated by colons. */
    int n = -1;
    if (dir != NULL && dir[0] != '\0') {
        n = snprintf(dst, cap, "%.*s", (int)strcspn(dir, ":"), dir);
    } else if ((dir = getenv("XDG_RUNTIME_DIR")) != NULL && dir[0] != '\0') {
        n = snprintf(dst, cap, "%s/muster", dir);
    } else if (geteuid() == 0 && access("/run", W_OK) == 0) {
        n = snprintf(dst, cap, "/run/muster");
    }
    return n > 0 && (size_t)n < cap ? dst : "";
}

static struct srv_config
config_of(const struct srv_options *o, const char *host, const char *state_dir)
{
    struct srv_config c = SRV_CONFIG_DEFAULT;
    c.host = host;
    c.port = (uint16_t)o->port;
    c.store.key_bytes_max = o->key_bytes_max;
    c.store.value_bytes_max = o->value_bytes_max;
    c.store.memory_bytes_max = o->store_memory_max;
    c.store.out_bytes_max = o->unread_max;
    c.connections_max = o->connections_max;
    c.first_bytes_ns = o->first_bytes_ns;
    c.lease_ns = o->lease_ns;
    c.beat_ns = o->beat_ns;
    c.fence_ns = o->fence_ns;
    c.recovery_ns = o->recovery_ns;
    c.quarantine_failures = o->quarantine.failures;
    c.quarantine_window_ns = o->quarantine.window_ns;
    c.state_dir = state_dir;
    c.keep_jobs = o->state_dir != NULL && o->state_dir[0] != '\0';
    c.read_needs_token = o->read_needs_token;
    c.open_store = o->open_store;
    c.version = MUSTER_VERSION;
    c.lasts = true;
    return c;
}

/* --- the process --- */

/* A connection is a descriptor: take as many as we may have. Where a thread writes states, the
 * first thousands do not wait for the table to grow. */
static void raise_descriptor_limit(const struct srv_options *o)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &l); /* Else what we have must do; running out is handled. */
    }
    if (o->state_dir != NULL)
        mu_files_make_room(16384);
}

/* Written aside and renamed, so that whoever waits for the file reads a whole number. */
static int write_port_file(const char *path, uint16_t port, struct mu_err *err)
{
    char text[8];
    char aside[1024];
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return mu_err_set(err, -EINVAL, "--port-file: '%s' is there and is no regular file", path);
    int n = snprintf(text, sizeof text, "%u\n", port);
    if (snprintf(aside, sizeof aside, "%s.%d", path, (int)getpid()) >= (int)sizeof aside)
        return mu_err_set(err, -ENAMETOOLONG, "--port-file: the path is too long");
    MU_CLEANUP(mu_closep) int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, (size_t)n) != n || rename(aside, path) < 0) {
        int r = mu_err_set(err, -errno, "--port-file: write '%s': %s", path, strerror(errno));
        (void)unlink(aside);
        return r;
    }
    return 0;
}

struct process {
    struct srv *srv;
    uv_timer_t watchdog;
    uv_signal_t term;
    uv_signal_t interrupt;
};

static void on_stop_signal(uv_signal_t *handle, int signo)
{
    struct process *p = handle->data;
    if (p->srv == NULL)
        return;
    mu_manager_notify("STOPPING=1");
    mu_log(MU_INFO, "server.end", "signo=%d agents=%u jobs=%u", signo, srv_agent_count(p->srv),
           srv_live_job_count(p->srv));
    srv_close(p->srv, NULL, NULL);
    p->srv = NULL;
    uv_close((uv_handle_t *)&p->term, NULL);
    uv_close((uv_handle_t *)&p->interrupt, NULL);
    uv_close((uv_handle_t *)&p->watchdog, NULL);
}

/* From the loop that does the work, so that a loop that hangs is noticed; and what `systemctl
 * status` shows. */
static void on_watchdog(uv_timer_t *timer)
{
    struct process *p = timer->data;
    char text[160];
    (void)snprintf(text, sizeof text, "WATCHDOG=1\nSTATUS=listening on %s, %u live jobs, %u agents",
                   srv_address(p->srv), srv_live_job_count(p->srv), srv_agent_count(p->srv));
    mu_manager_notify(text);
}

static void tell_manager(struct process *p)
{
    char text[160];
    int64_t every_ns = mu_manager_watchdog_ns();
    uint64_t every_ms =
        every_ns > 0 && every_ns < MU_NS_PER_MS ? 1 : (uint64_t)(every_ns / MU_NS_PER_MS);
    (void)snprintf(text, sizeof text, "READY=1\nSTATUS=listening on %s", srv_address(p->srv));
    mu_manager_notify(text);
    if (every_ms > 0)
        (void)uv_timer_start(&p->watchdog, on_watchdog, every_ms, every_ms);
}

static int watch_signals(uv_loop_t *loop, struct process *p)
{
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(
        SIGHUP,
        SIG_IGN); /* There is nothing to read anew, and a closed terminal is no reason to end. */
    p->term.data = p;
    p->interrupt.data = p;
    p->watchdog.data = p;
    int r = uv_timer_init(loop, &p->watchdog);
    if (r == 0)
        r = uv_signal_init(loop, &p->term);
    if (r == 0)
        r = uv_signal_init(loop, &p->interrupt);
    if (r == 0)
        r = uv_signal_start(&p->term, on_stop_signal, SIGTERM);
    return r == 0 ? uv_signal_start(&p->interrupt, on_stop_signal, SIGINT) : r;
}

static enum exit_status complain(const struct mu_err *err, enum exit_status status)
{
    (void)fprintf(stderr, PROGRAM ": %s\n", err->msg);
    return status;
}

/* What whoever reaches the port may do, for the line at the start. */
static const char *openness(const struct srv_options *o, const struct mu_token *token)
{
    if (!mu_token_is_set(token))
        return "joining and the store are open to whoever reaches this port";
    return o->open_store ? "joining and changes need the token, the store is open to whoever "
                           "reaches this port"
                         : "joining and changes need the token, the store is open to this machine";
}

static enum exit_status serve(const struct srv_options *o,
                              const char *host,
                              const char *state_dir,
                              const struct mu_token *token)
{
    struct mu_err err = {0};
    struct process p = {0};
    uv_loop_t *loop = uv_default_loop();
    struct srv_config config = config_of(o, host, state_dir);
    config.token = token;
    if (loop == NULL || watch_signals(loop, &p) < 0) {
        (void)mu_err_set(&err, -ENOMEM, "no memory or descriptors for an event loop");
        return complain(&err, EXIT_TROUBLE);
    }
    int handed_over = mu_manager_take_socket(&err);
    if (handed_over < 0 && handed_over != -ENOENT)
        return complain(&err, EXIT_TROUBLE);
    if (handed_over >= 0)
        config.listen_fd = handed_over; /* The socket unit's address and port count, not ours. */
    if (srv_start(loop, &config, &p.srv, &err) < 0)
        return complain(&err, EXIT_TROUBLE);
    if (o->port_file != NULL && write_port_file(o->port_file, srv_port(p.srv), &err) < 0)
        return complain(&err, EXIT_TROUBLE);
    (void)fprintf(stderr, PROGRAM ": listening on %s (version " MUSTER_VERSION "); %s\n",
                  srv_address(p.srv), openness(o, token));
    tell_manager(&p);
    srv_run(p.srv); /* Returns when the signal's handler has closed everything. */
    (void)uv_loop_close(loop);
    return EXIT_GOOD;
}

static int read_token(const struct srv_options *o, struct mu_token *ret, struct mu_err *err)
{
    int r = mu_token_read_daemon(o->token_file, getenv("CREDENTIALS_DIRECTORY"), ret, err);
    if (r == 0 && !mu_token_is_set(ret) && (o->read_needs_token || o->open_store))
        r = mu_err_set(err, -EINVAL,
                       "--%s needs a token: --token-file FILE, which muster token new "
                       "makes",
                       o->read_needs_token ? "read=token" : "open-store");
    return r;
}

/* A reader that has seen enough is no error, a full disk is. */
static int end_of_print(void)
{
    struct mu_err err = {0};
    if ((fflush(stdout) == 0 && !ferror(stdout)) || errno == EPIPE)
        return EXIT_GOOD;
    (void)mu_err_set(&err, -errno, "cannot write to standard output: %s", strerror(errno));
    return complain(&err, EXIT_TROUBLE);
}

int main(int argc, char **argv)
{
    struct mu_err err = {0};
    struct srv_options o = {0};
    char host[MU_ADDR_BYTES];
    char state_dir[1024];
    if (srv_options_parse(argc, argv, &o, &err) < 0)
        return complain(&err, EXIT_USAGE);
    if (o.help || o.version) {
        if (o.help)
            srv_options_help();
        else
            (void)printf(PROGRAM " " MUSTER_VERSION "\n");
        return end_of_print();
    }
    if (srv_options_check(&o, host, sizeof host, &err) < 0)
        return complain(&err, EXIT_USAGE);
    struct mu_token token;
    if (read_token(&o, &token, &err) < 0)
        return complain(&err, EXIT_USAGE);
    mu_log_setup(PROGRAM, o.log_level, o.log_format);
    raise_descriptor_limit(&o);
    enum exit_status status = serve(
        &o, host,
        o.state_dir != NULL ? o.state_dir : default_state_dir(state_dir, sizeof state_dir), &token);
    mu_token_wipe(&token);
    return status;
}
