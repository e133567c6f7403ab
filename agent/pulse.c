/* Looking at the workers' processes; see pulse.h. */
#include "agent/pulse.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/workers/family.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"

enum {
    CHILDREN_BYTES = 1024, /* Of a list of children, as much as is looked at. */
    FIELD_STATE = 3,       /* As proc(5) numbers them. */
    FIELD_UTIME = 14,
    FIELD_CSTIME = 17,
    DESCENDANTS_MAX = 512, /* Looked at; more take part in the work of those. */
    AGAIN_S = 10           /* What is told is told again: a server may have been restarted. */
};

/* State, and CPU time with that of children it has waited for, in clock ticks. False: it is gone.
 */
static bool read_stat(int32_t pid, char *ret_state, uint64_t *ret_cpu)
{
    char text[FAMILY_STAT_BYTES];
    if (!family_stat(pid, text, sizeof text))
        return false;
    const char *at = text;
    *ret_cpu = 0;
    for (int field = FIELD_STATE; field <= FIELD_CSTIME; field++) {
        at = strchr(at, ' ');
        if (at == NULL)
            return false;
        at++;
        if (field == FIELD_STATE)
            *ret_state = *at;
        uint64_t ticks = 0;
        for (const char *d = at; field >= FIELD_UTIME && *d >= '0' && *d <= '9'; d++)
            ticks = ticks * 10 + (uint64_t)(*d - '0');
        *ret_cpu += ticks;
    }
    return true;
}

/* CPU time of what descends from it. Each thread has children of its own. */
static uint64_t cpu_below(int32_t pid, int *left)
{
    char path[64];
    uint64_t sum = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task", pid);
    MU_CLEANUP(mu_closedirp) DIR *tasks = opendir(path);
    for (const struct dirent *e = tasks != NULL ? readdir(tasks) : NULL; e != NULL;
         e = readdir(tasks)) {
        char text[CHILDREN_BYTES];
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", pid, e->d_name);
        MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        text[n > 0 ? n : 0] = '\0';
        char *rest = text;
        for (const char *word = strsep(&rest, " "); rest != NULL && *left > 0;
             word = strsep(&rest, " ")) { /* The last word, which may be cut, is left out. */
            int32_t child = 0;
            uint64_t cpu = 0;
            char state = ' ';
            for (; *word >= '0' && *word <= '9'; word++)
                child = child * 10 + (*word - '0');
            --*left;
            if (child > 0 && read_stat(child, &state, &cpu))
                sum += cpu + cpu_below(child, left);
        }
    }
    return sum;
}

static struct hang_sample sample(struct pulse *p, uint32_t i, char state, uint64_t cpu)
{
    const struct talk_said *said = work_said(p->work, i);
    int left = DESCENDANTS_MAX;
    if (cpu == p->cpu[i])
        p->below[i] = cpu_below(p->pids[i], &left);
    p->cpu[i] = cpu;
    struct hang_sample s = {.stopped = state == 'T' || state == 't',
                            .cpu = cpu,
                            .cpu_below = p->below[i],
                            .written = output_written(p->output, i)};
    if (said == NULL)
        return s;
    s.has_step = said->has_step;
    s.step = said->step;
    s.step_ns = said->step_ns;
    s.in_section = said->section[0] != '\0';
    s.section_since_ns = said->section_since_ns;
    s.section_limit_ns = said->section_limit_ns;
    return s;
}

static int32_t fit(int64_t v)
{
    return v > INT32_MAX ? INT32_MAX : (int32_t)v;
}

/* Tell who is silent when it is somebody else than before, or some time later again. */
static void tell(struct pulse *p, int64_t now_ns)
{
    uint32_t n = 0;
    bool same = true;
    for (uint32_t i = 0; i < p->hang.count && n < CTL_SILENT_MAX; i++) {
        int64_t since_ns = hang_silent_since(&p->hang, i, now_ns);
        const struct hang_sample *s = &p->hang.workers[i].last;
        if (since_ns == 0)
            continue;
        int32_t *v = p->now + (size_t)n * CTL_SILENT_NUMBERS;
        v[0] = (int32_t)i;
        v[1] = fit((now_ns - since_ns) / MU_NS_PER_MS);
        v[2] = s->has_step && s->step >= 0 ? fit(s->step) : -1;
        v[3] = s->stopped;
        const int32_t *was = p->told + (size_t)n * CTL_SILENT_NUMBERS;
        same = same && n < p->told_count && was[0] == v[0] && was[3] == v[3];
        n++;
    }
    same = same && n == p->told_count;
    if (same && (n == 0 || now_ns < p->told_ns + AGAIN_S * 1000 * MU_NS_PER_MS))
        return;
    if (n > 0)
        memcpy(p->told, p->now, (size_t)n * CTL_SILENT_NUMBERS * sizeof *p->told);
    p->told_count = n;
    p->told_ns = now_ns;
    p->events.on_silent(p->events.arg, (struct ctl_ints){p->told, n * CTL_SILENT_NUMBERS});
}

static void on_look(uv_timer_t *t)
{
    struct pulse *p = t->data;
    struct hang_verdict v;
    int64_t now_ns = mu_now_ns();
    for (uint32_t i = 0; i < p->hang.count; i++) {
        char state = ' ';
        uint64_t cpu = 0;
        if (work_is_there(p->work, i) && read_stat(p->pids[i], &state, &cpu)) {
            struct hang_sample s = sample(p, i, state, cpu);
            hang_note(&p->hang, i, now_ns, &s);
        } else {
            hang_ended(&p->hang, i);
        }
    }
    tell(p, now_ns);
    if (!hang_look(&p->hang, now_ns, &v))
        return;
    pulse_stop(p);
    p->events.on_hung(p->events.arg, &v, now_ns);
}

static void *array(uint32_t count, size_t bytes)
{
    return mu_zalloc(mu_mem_default(), count * bytes);
}

int pulse_init(struct pulse *p,
               uv_loop_t *loop,
               uint32_t nproc,
               const struct hang_limits *limits,
               const struct pulse_events *events)
{
    *p = (struct pulse){.events = *events};
    int r = hang_init(&p->hang, mu_mem_default(), limits, nproc);
    p->pids = array(nproc, sizeof *p->pids);
    p->cpu = array(nproc, sizeof *p->cpu);
    p->below = array(nproc, sizeof *p->below);
    p->told = array(nproc, CTL_SILENT_NUMBERS * sizeof *p->told);
    p->now = array(nproc, CTL_SILENT_NUMBERS * sizeof *p->now);
    if (r < 0 || p->pids == NULL || p->cpu == NULL || p->below == NULL || p->told == NULL ||
        p->now == NULL)
        return -ENOMEM;
    (void)uv_timer_init(loop, &p->timer); /* Cannot fail. */
    p->timer.data = p;
    uv_unref((uv_handle_t *)&p->timer);
    return 0;
}

void pulse_use(struct pulse *p, const struct work *work, const struct output *output)
{
    p->work = work;
    p->output = output;
}

void pulse_start(struct pulse *p, const int32_t *pids)
{
    uint64_t every_ms = (uint64_t)(hang_gap_ns(&p->hang) / MU_NS_PER_MS);
    memcpy(p->pids, pids, p->hang.count * sizeof *p->pids);
    memset(p->cpu, 0, p->hang.count * sizeof *p->cpu);
    memset(p->below, 0, p->hang.count * sizeof *p->below);
    p->told_count = 0;
    hang_begin(&p->hang, mu_now_ns());
    (void)uv_timer_start(&p->timer, on_look, every_ms, every_ms);
}

void pulse_stop(struct pulse *p)
{
    (void)uv_timer_stop(&p->timer);
}

void pulse_close(struct pulse *p)
{
    uv_close((uv_handle_t *)&p->timer, NULL);
    hang_fini(&p->hang);
    free(p->pids);
    free(p->cpu);
    free(p->below);
    free(p->told);
    free(p->now);
}
