/* Prints what docs/ takes from the tables of the code: control messages, state machines, options.
 * The target `states` puts it there, the gate `generated` compares. */
#include <stdio.h>
#include <string.h>

#include "agent/life/life.h"
#include "agent/options.h"
#include "base/ctl.h"
#include "base/str.h"
#include "rendezvous/job/job.h"

static const struct {
    const char *name;
    void (*print)(struct mu_buf *out);
} parts[] = {
    {"protocol", ctl_describe},
    {"job", job_dot},
    {"life", life_dot},
    {"node-agent-options", agent_options_man},
};

static int usage(void)
{
    (void)fprintf(stderr, "usage: muster-describe PART\nparts:");
    for (size_t i = 0; i < MU_COUNT(parts); i++)
        (void)fprintf(stderr, " %s", parts[i].name);
    (void)fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return usage();
    for (size_t i = 0; i < MU_COUNT(parts); i++) {
        if (strcmp(argv[1], parts[i].name) != 0)
            continue;
        struct mu_buf b;
        mu_buf_init(&b, mu_mem_default());
        parts[i].print(&b);
        bool ok = !b.oom && fwrite(b.p, 1, b.n, stdout) == b.n && fflush(stdout) == 0;
        mu_buf_fini(&b);
        return ok ? 0 : 1;
    }
    return usage();
}
