/* node-agent: one per node and job. Parses, wires, returns. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/options.h"
#include "agent/service/service.h"
#include "agent/workers/warden.h"
#include "base/log.h"
#include "base/str.h"

struct command {
    int argc;
    char **argv;
    const char *name;
};

/* Called through a link named torchrun it is one, in its sentences too. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* A reader that has seen enough is no error, a full disk is. */
static int print(const char *name, const char *text)
{
    if ((fputs(text, stdout) >= 0 && fflush(stdout) == 0) || errno == EPIPE)
        return 0;
    (void)fprintf(stderr, "%s: cannot write to standard output: %s\n", name, strerror(errno));
    return 1;
}

static int show(void (*text)(struct mu_buf *, const char *), const char *name)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    text(&b, name);
    int status = print(name, mu_buf_cstr(&b));
    mu_buf_fini(&b);
    return status;
}

static void version_text(struct mu_buf *b, const char *name)
{
    (void)mu_buf_addf(b, "%s %s\n", name, MUSTER_VERSION);
}

static int bad_usage(const struct command *c, int status, const struct mu_err *err)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "%s: error: %s\n", c->name, err->msg);
    if (status == 2)
        (void)mu_buf_addf(&b, "%s --help lists all flags.\n", c->name);
    (void)fputs(mu_buf_cstr(&b), stderr);
    mu_buf_fini(&b);
    return status;
}

/* Warnings, one a line. */
static void print_notes(const char *name, struct mu_buf *notes)
{
    for (const char *p = mu_buf_cstr(notes); *p != '\0';) {
        size_t n = strcspn(p, "\n");
        (void)fprintf(stderr, "%s: %.*s\n", name, (int)n, p);
        p += n + (p[n] == '\n');
    }
}

static int agent_main(struct warden *warden, void *arg)
{
    extern char **environ;
    const struct command *c = arg;
    static struct agent_options o;
    struct mu_err err = {0};
    struct mu_buf notes;
    int status = 2;
    (void)signal(SIGPIPE,
                 SIG_IGN); /* A broken console ends no job. Workers get the default back. */
    mu_buf_init(&notes, mu_mem_default());
    int r = agent_options_parse(&o, c->argc, c->argv, environ, &agent_machine_real, &notes, &status,
                                &err);
    print_notes(c->name, &notes);
    mu_buf_fini(&notes);
    if (r < 0)
        return bad_usage(c, status, &err);
    if (o.mode == AGENT_SHOW_HELP)
        return show(agent_options_help, c->name);
    if (o.mode == AGENT_SHOW_VERSION)
        return show(version_text, c->name);
    mu_log_setup(c->name, o.log_level, o.log_format);
    if (o.mode == AGENT_SERVE)
        return service_run(&o, c->argv, c->name);
    return agent_run(&o, warden, c->name);
}

/* A service has no workers of its own that a warden would have to end: it is one process, whose
 * signals and status are its manager's business. */
static bool is_service(const struct command *c)
{
    extern char **environ;
    static struct agent_options o;
    struct mu_buf notes;
    int status = 0;
    bool said = false;
    for (int i = 1; i < c->argc; i++)
        said = said || strncmp(c->argv[i], "--servi", 7) == 0;
    if (!said)
        return false;
    mu_buf_init(&notes, mu_mem_default());
    int r = agent_options_parse(&o, c->argc, c->argv, environ, &agent_machine_real, &notes, &status,
                                NULL);
    mu_buf_fini(&notes);
    return r == 0 && o.mode == AGENT_SERVE;
}

int main(int argc, char **argv)
{
    struct command c = {argc, argv, argc > 0 ? base_name(argv[0]) : "node-agent"};
    if (is_service(&c))
        return agent_main(NULL, &c);
    return warden_run(c.name, agent_main, &c);
}
