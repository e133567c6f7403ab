/* node-agent's command line against torchrun's grammar: one row, one command line with its
 * environment, and what must come of it. Rows follow the sheet of torchrun's behaviour: grammar,
 * flags, PET_ variables, value grammars, which rendezvous. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>

#include "tests/unit/unit.h"

#include "agent/options.h"
#include "agent/options_table.h"

#define NS_PER_S INT64_C(1000000000)
#define WORDS_MAX 24

/* A machine with 6 CPUs and as many GPUs as the text says: the words cpu, gpu and auto. */
static uint32_t six_cpus(void)
{
    return 6;
}

static uint32_t four_gpus(const char *visible)
{
    return visible == NULL ? 4 : (uint32_t)strlen(visible);
}

static uint32_t no_gpus(const char *visible)
{
    (void)visible;
    return 0;
}

static const struct agent_machine with_gpus = {six_cpus, four_gpus, NULL, NULL};
static const struct agent_machine without_gpus = {six_cpus, no_gpus, NULL, NULL};

/* argv and envp of a row: words behind the program's own name, split at '|'. */
struct line {
    char bytes[1024];
    char *words[WORDS_MAX + 2];
    int count;
};

static void split(struct line *l, const char *first, const char *text)
{
    size_t n = strlen(text);
    assert_true(n < sizeof l->bytes);
    memcpy(l->bytes, text, n + 1);
    l->count = 0;
    static char name[] = "node-agent";
    if (first != NULL)
        l->words[l->count++] = name;
    for (char *p = l->bytes; n > 0;) {
        size_t len = strcspn(p, "|");
        bool last = p[len] == '\0';
        p[len] = '\0';
        assert_true(l->count < WORDS_MAX);
        l->words[l->count++] = p;
        if (last)
            break;
        p += len + 1;
    }
    l->words[l->count] = NULL;
}

struct result {
    int code;
    int exit;
    struct mu_err err;
    char notes[1024];
    struct agent_options o;
    struct line argv;
    struct line envp;
};

static void
parse(struct result *r, const char *args, const char *env, const struct agent_machine *machine)
{
    struct mu_buf notes;
    *r = (struct result){.exit = -1};
    split(&r->argv, "node-agent", args);
    split(&r->envp, NULL, env);
    mu_buf_init(&notes, mu_mem_default());
    r->code = agent_options_parse(&r->o, r->argv.count, r->argv.words, r->envp.words, machine,
                                  &notes, &r->exit, &r->err);
    (void)snprintf(r->notes, sizeof r->notes, "%s", mu_buf_cstr(&notes));
    mu_buf_fini(&notes);
}

/* What was read, as one line of text, so that a row can say what it wants in words:
 * every field that a row names must be there. */
static void describe(const struct result *r, char *out, size_t cap)
{
    static const char *const rdzv[] = {"standalone", "static", "dynamic"};
    static const char *const kinds[] = {"auto", "module", "run_path", "direct"};
    const struct agent_options *o = &r->o;
    int n = snprintf(
        out, cap,
        " nodes=%u:%u nproc=%u restarts=%u win=%g back=%g back_steps=%u same=%s node_rank=%d "
        "join=%s id=%s role=<%s> topology=%s "
        "rdzv=%s at=%s:%u host=%d local=%s store=%u jt=%g lc=%g ct=%g st=%g kind=%s program=%s "
        "python=%s "
        "vlr=%d grace=%g sigs=%u:%s log_dir=%s nofiles=%d redirect=%d:%d%d%d%d "
        "tee=%d:%d%d quiet=%d:%d%d label=%d prefix=%s copy=%s,%s events=%d first=%d last=%u pt=%g "
        "sit=%g check=%s hct=%g hci=%g leave=%d "
        "chaos=%u "
        "numa=%s mi=%g "
        "service=%d slots=%u logs=%g:%g drain=%g notice=%s hook=<%s> hht=%g token=%s "
        "level=%d format=%d args=",
        o->nodes_min, o->nodes_max, o->nproc, o->max_restarts, (double)o->restart_window_ns / 1e9,
        (double)o->give_back_ns / 1e9, o->give_back_steps,
        o->same_failure_restart ? "restart" : "end", o->node_rank,
        o->on_join_restart ? "restart" : "wait", o->run_id != NULL ? o->run_id : "(fresh)", o->role,
        o->topology != NULL ? o->topology : "(none)", rdzv[o->rdzv], o->endpoint.host,
        o->endpoint.port, o->is_host, o->local_addr != NULL ? o->local_addr : "(none)",
        o->store_port, (double)o->join_timeout_ns / 1e9, (double)o->last_call_ns / 1e9,
        (double)o->connect_timeout_ns / 1e9, (double)o->server_timeout_ns / 1e9,
        kinds[o->program_kind], o->program, o->python, o->virtual_local_rank,
        (double)o->shutdown_timeout_ns / 1e9, o->signal_count, o->signals_text,
        o->log_dir != NULL ? o->log_dir : "(none)", o->no_files, o->any_redirect, o->redirects[0],
        o->redirects[1], o->redirects[2], o->redirects[10], o->any_tee, o->tee[0], o->tee[1],
        o->any_quiet, o->quiet[0], o->quiet[1], o->label,
        o->line_prefix != NULL ? o->line_prefix : "(usual)",
        o->copy_words[0] != NULL ? o->copy_words[0] : "(none)",
        o->copy_words[1] != NULL ? o->copy_words[1] : "(none)", o->events_on_console,
        o->exit_status_first, o->last_lines, (double)o->progress_timeout_ns / 1e9,
        (double)o->silence_timeout_ns / 1e9, o->health_check != NULL ? o->health_check : "(none)",
        (double)o->health_timeout_ns / 1e9, (double)o->health_interval_ns / 1e9,
        o->leave_quarantine, o->chaos.count, o->numa != NULL ? o->numa : "(none)",
        (double)o->monitor_interval_ns / 1e9, o->service, o->slots, (double)o->log_bytes,
        (double)o->log_bytes_all, (double)o->drain_timeout_ns / 1e9,
        o->preemption_url != NULL ? o->preemption_url : "(none)",
        o->hang_hook != NULL ? o->hang_hook : "(usual)", (double)o->hang_hook_timeout_ns / 1e9,
        o->token_file != NULL ? o->token_file : "(none)", o->log_level, o->log_format);
    for (char *const *a = o->args; a != NULL && *a != NULL && n > 0 && (size_t)n < cap; a++)
        n += snprintf(out + n, cap - (size_t)n, "[%s]", *a);
    if (n > 0 && (size_t)n < cap)
        (void)snprintf(out + n, cap - (size_t)n, " ");
}

struct row {
    const char *args; /* Words, '|' between. */
    const char *env;  /* Variables, '|' between. */
    int exit;         /* 0: taken. */
    const char *want; /* Taken: fields, one blank between. Refused: part of the sentence. */
    const char *note; /* Part of a warning; NULL: there must be none. */
};

/* clang-format off */
static const struct row rows[] = {
    /* --- defaults --- */
    {"p", "", 0, "nodes=1:1 nproc=1 restarts=0 node_rank=-1 join=wait id=(fresh) role=<default> topology=(none) rdzv=standalone "
     "at=localhost:0 host=1 local=(none) store=0 jt=600 lc=30 ct=60 st=60 kind=auto program=p python=python3 vlr=0 grace=30 "
     "sigs=4:SIGTERM,SIGINT,SIGHUP,SIGQUIT log_dir=(none) nofiles=0 redirect=0:0000 mi=0.1 level=1 format=0 args=", NULL},

    /* --- grammar: spelling and values --- */
    {"--nproc-per-node|3|p", "", 0, "nproc=3 program=p", NULL},
    {"--nproc_per_node|3|p", "", 0, "nproc=3", NULL},
    {"--nproc-per-node=3|p", "", 0, "nproc=3", NULL},
    {"--nproc_per_node=3|p", "", 0, "nproc=3", NULL},
    {"--nproc_per-node=3|p", "", 0, "nproc=3", NULL},
    {"--nproc=3|p", "", 0, "nproc=3", NULL},
    {"--nproc-=3|p", "", 0, "nproc=3", NULL},
    {"--nproc_|3|p", "", 0, "nproc=3", NULL},
    {"--nn=1|--stand|--max-r=2|--ro|abc|p", "", 0, "nodes=1:1 rdzv=standalone restarts=2 role=<abc>", NULL},
    {"--v|p", "", 0, "vlr=1", NULL},
    {"--ma=1|p", "", 2, "\"--ma\" could mean --max-restarts or --master-addr", NULL},
    {"--rd=x|p", "", 2, "\"--rd\" could mean --rdzv-backend or --rdzv-endpoint", NULL},
    {"--s|p", "", 2, "could mean", NULL},
    {"--=x|p", "", 2, "could mean", NULL},
    {"--nproc-per-node|3|--max_restarts=1|--nproc_per_node=2|--max-restarts|4|p", "", 0, "nproc=2 restarts=4", NULL},
    {"--role|a|--role=b|p", "", 0, "role=<b>", NULL},
    {"--role=|p", "", 0, "role=<>", NULL},
    {"--role||p", "", 0, "role=<>", NULL},
    {"--role=a b|p", "", 0, "role=<a b>", NULL},
    {"--role=a=b|p", "", 0, "role=<a=b>", NULL},
    {"--tee|--nnodes=1|p", "", 2, "--tee wants a value: --tee MAP", NULL},
    {"--nnodes", "", 2, "--nnodes wants a value", NULL},
    {"--max-restarts|-1|p", "", 1, "--max-restarts: -1 is out of range", NULL},
    {"--role|-5|p", "", 0, "role=<-5>", NULL},
    {"--role|-|p", "", 0, "role=<->", NULL},
    {"--role|-x|p", "", 2, "--role wants a value", NULL},
    {"--role|--|p", "", 2, "--role wants a value", NULL},
    {"--standalone=1|p", "", 2, "--standalone is a switch and takes no value", NULL},
    {"--module=|p", "", 2, "--module is a switch and takes no value", NULL},
    {"--no-standalone|p", "", 2, "unknown flag \"--no-standalone\"", NULL},

    /* --- grammar: short flags --- */
    {"-r3|p", "", 0, "redirect=1:3333", NULL},
    {"-r|3|p", "", 0, "redirect=1:3333", NULL},
    {"-r=3|p", "", 0, "redirect=1:3333", NULL},
    {"-m|p", "", 0, "kind=module", NULL},
    {"-mr3|p", "", 0, "kind=module program=p", NULL},
    {"-mr|1|p", "", 0, "redirect=1:1111", NULL},
    {"-mt0|p", "", 0, "kind=module", NULL},
    {"-mm|p", "", 0, "kind=module", NULL},
    {"-r|p", "", 2, "no program given", NULL}, /* The program was eaten as a value. */
    {"-r", "", 2, "--redirects wants a value", NULL},
    {"-x|p", "", 2, "unknown flag \"-x\"", NULL},
    {"-mx|p", "", 2, "-m is a switch and takes no value", NULL},
    {"-m1|p", "", 2, "-m is a switch and takes no value", NULL},
    {"-nnodes|p", "", 2, "unknown flag \"-nnodes\"", NULL},

    /* --- grammar: the program --- */
    {"", "", 2, "no program given", NULL},
    {"--nnodes=1", "", 2, "no program given", NULL},
    {"--nnodes=1|--", "", 2, "no program given", NULL},
    {"--nnodes=1||x", "", 2, "the program's name is empty", NULL},
    {"p|a|b", "", 0, "program=p args=[a][b]", NULL},
    {"p|--nproc-per-node|5|-m|--standalone|--|x|-r3||a b|--help", "", 0,
     "nproc=1 kind=auto program=p args=[--nproc-per-node][5][-m][--standalone][--][x][-r3][][a b][--help]", NULL},
    {"--nnodes=1|--|p|-x", "", 0, "program=p args=[-x]", NULL},
    {"--|p|--|b", "", 0, "program=p args=[--][b]", NULL},
    {"--|--nnodes|b", "", 0, "program=--nnodes args=[b]", NULL},
    {"p|--|a", "", 0, "program=p args=[--][a]", NULL},
    {"p|a|--|b", "", 0, "program=p args=[a][--][b]", NULL},
    {"-|a", "", 0, "program=- args=[a]", NULL},
    {"-5|a", "", 0, "program=-5 args=[a]", NULL},
    {"--no-python|sh|-c|x", "", 0, "kind=direct program=sh args=[-c][x]", NULL},
    {"--no-python|-m|p", "", 1, "--module and --no-python exclude each other", NULL},
    {"p", "PYTHON_EXEC=/opt/py", 0, "python=/opt/py", NULL},
    {"p", "PYTHON_EXEC=", 0, "python=python3", NULL},

    /* --- unknown flags --- */
    {"--bogus|p", "", 2, "unknown flag \"--bogus\": see --help", NULL},
    {"--bogus=1|p", "", 2, "unknown flag \"--bogus\"", NULL},
    {"--nnode-rank=1|p", "", 2, "did you mean --node-rank?", NULL},
    {"--nporc-per-node=1|p", "", 2, "did you mean --nproc-per-node?", NULL},
    {"--max-restart-s|1|p", "", 2, "did you mean --max-restarts?", NULL},
    {"--rzdv=n1|p", "", 2, "did you mean --rdzv?", NULL},
    {"--a-flag-that-is-far-longer-than-any-flag-that-this-program-has-or-ever-will=1|p", "", 2, "unknown flag", NULL},
    {"--\x1b[31m|p", "", 2, "unknown flag \"--\\x1b[31m\"", NULL},

    /* --- nnodes --- */
    {"--nnodes=2:4|--rdzv=n1|p", "", 0, "nodes=2:4", NULL},
    {"--nnodes= 2 : 4 |--rdzv=n1|p", "", 0, "nodes=2:4", NULL},
    {"--nnodes=+2|--rdzv=n1|p", "", 0, "nodes=2:2", NULL},
    {"--nnodes=1_0|--rdzv=n1|p", "", 0, "nodes=10:10", NULL},
    {"--nnodes=2:1|p", "", 1, "--nnodes: \"2:1\": the first number may not be greater", NULL},
    {"--nnodes=0|p", "", 1, "--nnodes: 0 is out of range: 1 to 65536", NULL},
    {"--nnodes=0:1|p", "", 1, "out of range", NULL},
    {"--nnodes=1:2:3|p", "", 1, "--nnodes: \"1:2:3\" is not N or MIN:MAX", NULL},
    {"--nnodes=x|p", "", 1, "--nnodes: \"x\" is not a whole number", NULL},
    {"--nnodes=1:|p", "", 1, "is not a whole number", NULL},
    {"--nnodes=:1|p", "", 1, "is not a whole number", NULL},
    {"--nnodes=|p", "", 1, "is not a whole number", NULL},
    {"--nnodes=1__0|p", "", 1, "is not a whole number", NULL},
    {"--nnodes=_1|p", "", 1, "is not a whole number", NULL},
    {"--nnodes=65537|p", "", 1, "out of range", NULL},

    /* --- nproc-per-node --- */
    {"--nproc-per-node=0|p", "", 1, "--nproc-per-node: 0 is out of range: 1 to 1024", NULL},
    {"--nproc-per-node=-1|p", "", 1, "out of range", NULL},
    {"--nproc-per-node=many|p", "", 1, "\"many\" is not a whole number, nor one of cpu, gpu, auto", NULL},
    {"--nproc-per-node=CPU|p", "", 1, "\"CPU\"", NULL},
    {"--nproc-per-node=|p", "", 1, "--nproc-per-node", NULL},
    {"--nproc-per-node=1025|p", "", 1, "out of range", NULL},
    {"--nproc-per-node=1024|p", "", 0, "nproc=1024", NULL},
    {"--nproc-per-node=cpu|p", "", 0, "nproc=6", NULL},
    {"--nproc-per-node=gpu|p", "", 0, "nproc=4", NULL},
    {"--nproc-per-node=auto|p", "", 0, "nproc=4", NULL},
    {"--nproc-per-node=auto|p", "CUDA_VISIBLE_DEVICES=", 0, "nproc=6", NULL},
    {"--nproc-per-node=gpu|p", "CUDA_VISIBLE_DEVICES=", 1, "--nproc-per-node=gpu: no GPU is visible here", NULL},
    {"--nproc-per-node=xpu|p", "", 1, "--nproc-per-node=xpu", NULL},

    /* --- numbers and times --- */
    {"--max-restarts=abc|p", "", 2, "--max-restarts: \"abc\" is not a whole number", NULL},
    {"--max-restarts=|p", "", 2, "is not a whole number", NULL},
    {"--max-restarts=3|p", "", 0, "restarts=3", NULL},
    {"--max-restarts=3|p", "", 0, "win=0 back=0 back_steps=0 same=end", NULL},
    {"--max-restarts=3/1h|p", "", 0, "restarts=3 win=3600", NULL},
    {"--max-restarts= 3/ 1.5m |p", "", 0, "restarts=3 win=90", NULL},
    {"--max-restarts=100/2d|p", "", 0, "restarts=100 win=172800", NULL},
    {"--max-restarts=0/30s|p", "", 0, "restarts=0 win=30", NULL},
    {"--max-restarts=3/1h|--max-restarts=4|p", "", 0, "restarts=4 win=0", NULL},
    {"p", "PET_MAX_RESTARTS=3/1h", 0, "restarts=3 win=3600", NULL},
    {"p", "PET_MAX_RESTARTS=3/", 2, "PET_MAX_RESTARTS: \"3/\" is not N or N/WINDOW (as in 3 or 3/1h)", NULL},
    {"--max-restarts=3/|p", "", 2, "--max-restarts: \"3/\" is not N or N/WINDOW (as in 3 or 3/1h)", NULL},
    {"--max-restarts=/1h|p", "", 2, "--max-restarts: \"/1h\" is not N or N/WINDOW", NULL},
    {"--max-restarts=/|p", "", 2, "--max-restarts: \"/\" is not N or N/WINDOW", NULL},
    {"--max-restarts=3/1x|p", "", 2, "--max-restarts: \"1x\" is not a time with its unit (as in 90s, 15m, 1h, 2d)", NULL},
    {"--max-restarts=3/60|p", "", 2, "--max-restarts: \"60\" is not a time with its unit", NULL},
    {"--max-restarts=3/h|p", "", 2, "--max-restarts: \"h\" is not a time with its unit", NULL},
    {"--max-restarts=3/-1h|p", "", 2, "--max-restarts: \"-1h\" is not a time with its unit", NULL},
    {"--max-restarts=3/1h/2|p", "", 2, "--max-restarts: \"1h/2\" is not a time with its unit", NULL},
    {"--max-restarts=3/0s|p", "", 1, "--max-restarts: \"0s\" is out of range: 0.001 s to 366 d is allowed", NULL},
    {"--max-restarts=3/367d|p", "", 1, "--max-restarts: \"367d\" is out of range", NULL},
    {"--max-restarts=3/99999999999999999999d|p", "", 1, "is out of range", NULL},
    {"--max-restarts=-1/1h|p", "", 1, "--max-restarts: -1 is out of range: 0 to 100 is allowed", NULL},
    {"--max-restarts=101/1h|p", "", 1, "--max-restarts: 101 is out of range: 0 to 100 is allowed", NULL},
    {"--max-restarts=x/1h|p", "", 2, "--max-restarts: \"x\" is not a whole number", NULL},
    {"--restarts-given-back-after=30m|p", "", 0, "back=1800 back_steps=0", NULL},
    {"--restarts-given-back-after=500steps|p", "", 0, "back=0 back_steps=500", NULL},
    {"--restarts-given-back-after=never|p", "PET_RESTARTS_GIVEN_BACK_AFTER=30m", 0, "back=0 back_steps=0", NULL},
    {"--restarts-given-back-after=500|p", "", 2,
     "--restarts-given-back-after: \"500\" is neither a time with its unit (as in 30m), nor steps (as in 500steps), nor never", NULL},
    {"--restarts-given-back-after=steps|p", "", 2, "\"steps\" is neither a time", NULL},
    {"--restarts-given-back-after=|p", "", 2, "\"\" is neither a time", NULL},
    {"--restarts-given-back-after=0steps|p", "", 1, "--restarts-given-back-after: 0 is out of range: 1 to", NULL},
    {"--restarts-given-back-after=xsteps|p", "", 2, "--restarts-given-back-after: \"x\" is not a whole number", NULL},
    {"--restarts-given-back-after=0m|p", "", 1, "--restarts-given-back-after: \"0m\" is out of range", NULL},
    {"--same-failure=restart|p", "", 0, "same=restart", NULL},
    {"--same-failure=end|p", "PET_SAME_FAILURE=restart", 0, "same=end", NULL},
    {"--same-failure=ignore|p", "", 2, "--same-failure: \"ignore\" is not one of end|restart", NULL},
    {"--monitor-interval=5|p", "", 0, "mi=5", NULL},
    {"--monitor-interval=.5|p", "", 0, "mi=0.5", NULL},
    {"--monitor-interval=0|p", "", 1, "--monitor-interval: 0 s is out of range", NULL},
    {"--monitor-interval=x|p", "", 2, "is not a number of seconds", NULL},
    {"--shutdown-timeout=2|p", "", 0, "grace=2", NULL},
    {"--shutdown-timeout=0|p", "", 0, "grace=0", NULL},
    {"--shutdown-timeout=0.25|p", "", 0, "grace=0.25", NULL},
    {"--shutdown-timeout=-1|p", "", 2, "--shutdown-timeout: \"-1\"", NULL},
    {"p", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7", 0, "grace=7", NULL},
    {"--shutdown-timeout=2|p", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7", 0, "grace=2", NULL},
    {"p", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x", 2, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: \"x\"", NULL},
    {"p", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7|PET_SHUTDOWN_TIMEOUT=5", 0, "grace=5", NULL},

    /* --- words --- */
    {"--start-method=fork|p", "", 0, "program=p", NULL},
    {"--start-method=bad|p", "", 2, "--start-method: \"bad\" is not one of spawn|fork|forkserver", NULL},
    {"--start-method=spawn~fork|p", "", 2, "--start-method", NULL},
    {"--start-method=|p", "", 2, "--start-method", NULL},
    {"p", "PET_START_METHOD=bad", 0, "program=p", NULL}, /* torchrun does not check it either. */
    {"--event-log-handler=null|p", "", 0, "program=p", NULL},
    {"--event-log-handler=console|p", "", 0, "events=1", NULL},
    {"--event-log-handler=x|p", "", 1, "is not one of null, console", NULL},
    {"--numa-binding=node|p", "", 0, "numa=node", NULL},
    {"--numa_binding|core-complex|p", "", 0, "numa=core-complex", NULL},
    {"--numa-binding=x|p", "", 2, "--numa-binding: \"x\" is not one of", NULL},
    {"p", "PET_NUMA_BINDING=node", 0, "numa=(none)", NULL}, /* Has no variable. */
    {"--run-path|p", "", 0, "kind=run_path program=p", NULL},
    {"p", "PET_RUN_PATH=1", 0, "kind=run_path", NULL},
    {"--run-path|-m|--no-python|p", "", 0, "kind=run_path", NULL}, /* It beats them. */
    {"p", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=1h", 1, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", NULL},
    {"p", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0", 0, "program=p", NULL},
    {"--exit-status=first|p", "", 0, "first=1", NULL},
    {"--exit-status=one|p", "PET_EXIT_STATUS=first", 0, "first=0", NULL},
    {"--exit-status=worst|p", "", 2, "--exit-status: \"worst\" is not one of one|first", NULL},
    {"p", "", 0, "pt=0 sit=0", NULL},
    {"--progress-timeout=2.5|--silence-timeout=600|p", "", 0, "pt=2.5 sit=600", NULL},
    {"--progress-timeout=auto|p", "", 0, "pt=-1e-09", NULL},
    {"--progress-timeout=autos|p", "", 2, "--progress-timeout", NULL},
    {"p", "", 0, "check=(none) hct=30 hci=30 leave=0", NULL},
    {"--health-check=nvidia-smi -q|--health-check-timeout=2.5|--health-check-interval=60|p", "", 0, "check=nvidia-smi -q hct=2.5 hci=60", NULL},
    {"p", "PET_HEALTH_CHECK=true", 0, "check=true", NULL},
    {"--health-check= |p", "", 2, "--health-check is empty", NULL},
    {"--health-check-timeout=0|p", "", 1, "--health-check-timeout", NULL},
    {"--leave-quarantine|p", "", 0, "leave=1", NULL},
    {"--progress-timeout=soon|p", "", 2, "--progress-timeout", NULL},
    {"--chaos=kill rank=1|p", "", 0, "chaos=1", NULL},
    {"p", "MUSTER_CHAOS=cut for=2s; kill-agent", 0, "chaos=2", NULL},
    {"--chaos=|p", "MUSTER_CHAOS=cut for=2s; kill-agent", 0, "chaos=0", NULL},
    {"--chaos=kill rnk=1|p", "", 2, "--chaos: \"rnk=1\" is no word of kill", NULL},
    {"p", "MUSTER_CHAOS=crash", 2, "MUSTER_CHAOS: \"crash\" is no fault", NULL},
    {"p", "", 0, "last=10", NULL},
    {"--last-lines=0|p", "", 0, "last=0", NULL},
    {"p", "PET_LAST_LINES=20", 0, "last=20", NULL},
    {"--last-lines=21|p", "", 1, "--last-lines: 21", NULL},
    {"--last-lines=few|p", "", 2, "--last-lines", NULL},
    {"--exit-state=first|p", "", 2, "did you mean --exit-status?", NULL},
    {"--logs-specs=default|p", "", 0, "program=p", NULL},
    {"--logs-specs=x|p", "", 1, "--logs-specs: \"x\" is a plug-in", NULL},
    {"p", "PET_LOGS_SPECS=x", 0, "program=p", NULL},
    {"--virtual-local-rank|p", "", 0, "vlr=1", NULL},
    {"--local-addr=127.0.0.3|p", "", 0, "local=127.0.0.3", NULL},
    {"--local-addr=|p", "", 1, "--local-addr", NULL},
    {"--on-join=restart|p", "", 0, "join=restart", NULL},
    {"--on-join=wait|p", "", 0, "join=wait", NULL},
    {"--on-join=maybe|p", "", 2, "--on-join: \"maybe\" is not one of wait|restart", NULL},
    {"p", "PET_ON_JOIN=maybe", 2, "PET_ON_JOIN: \"maybe\"", NULL},
    {"--server-timeout=5|p", "", 0, "st=5", NULL},
    {"--server-timeout=0|p", "", 1, "--server-timeout: 0 s is out of range", NULL},
    {"--topology=rack7|p", "", 0, "topology=rack7", NULL},
    {"--topology=|p", "", 0, "topology=(none)", NULL},
    {"--log-format=json|p", "", 0, "format=1", NULL},
    {"--log-format=xml|p", "", 2, "--log-format", NULL},
    {"p", "LOGLEVEL=INFO", 0, "level=2", NULL},
    {"p", "LOGLEVEL=loud", 1, "LOGLEVEL: \"loud\" is not one of", NULL},

    /* --- signals --- */
    {"--signals-to-handle=SIGUSR1,SIGTERM|p", "", 0, "sigs=2:SIGUSR1,SIGTERM", NULL},
    {"--signals-to-handle= SIGUSR1 , SIGTERM,SIGUSR1|p", "", 0, "sigs=2:", NULL},
    {"--signals-to-handle=SIGNONE,SIGTERM|p", "", 0, "sigs=1:", "\"SIGNONE\" is not the name of a signal"},
    {"--signals-to-handle=TERM|p", "", 0, "sigs=0:", "\"TERM\" is not the name of a signal"},
    {"--signals-to-handle=|p", "", 0, "sigs=0:", "\"\" is not the name"},
    {"--signals-to-handle=SIGKILL|p", "", 1, "SIGKILL cannot be caught", NULL},
    {"--signals-to-handle=SIGTERM,SIGSTOP|p", "", 1, "SIGSTOP cannot be caught", NULL},

    /* --- output --- */
    {"-r|0:1,1:2|--nproc-per-node=2|p", "", 0, "redirect=1:1200", NULL},
    {"-r|0:1,0:3|p", "", 0, "redirect=1:3000", NULL},
    {"-r|10:1|--nproc-per-node=11|p", "", 0, "redirect=1:0001", NULL}, /* torchrun cannot say this. */
    {"-r|1:3|p", "", 0, "redirect=0:0300", "--redirects: local rank 1 has no effect: the workers of this node are 0 to 0 (--nproc-per-node)"},
    {"-r|7:1|--nproc-per-node=2|p", "", 0, "redirect=0:0000", "--redirects: local rank 7 has no effect: the workers of this node are 0 to 1"},
    {"-r|99999999999:3|p", "", 0, "redirect=0:0000", "has no effect"},
    {"-r|0|p", "", 0, "redirect=0:0000", NULL},
    {"--redirects=9|p", "", 1, "--redirects: \"9\" is not one digit 0 to 3", NULL},
    {"--redirects=|p", "", 1, "--redirects", NULL},
    {"--redirects=0:4|p", "", 1, "--redirects", NULL},
    {"--redirects=0:|p", "", 1, "--redirects", NULL},
    {"--redirects=:1|p", "", 1, "--redirects", NULL},
    {"--redirects=0:1,|p", "", 1, "--redirects", NULL},
    {"--redirects=0:1;1:1|p", "", 1, "--redirects", NULL},
    {"--redirects=33|p", "", 1, "--redirects", NULL},
    {"--tee=|p", "", 1, "--tee: \"\" is not one digit", NULL},
    {"--tee=0|p", "", 0, "program=p", NULL},
    {"--tee=3|p", "", 0, "redirect=0:0000 tee=1:33", NULL},
    {"-t2|-r|1|p", "", 0, "redirect=1:1111 tee=1:22", NULL},
    {"-mt3|p", "", 0, "tee=1:33", NULL},
    {"p", "PET_TEE=1", 0, "tee=1:11", NULL},
    {"--tee=1:3|p", "", 0, "tee=0:03", "--tee: local rank 1 has no effect"},
    {"--tee=1:3|--nproc-per-node=2|p", "", 0, "tee=1:03", NULL},
    {"--tee=4|p", "", 1, "--tee: \"4\" is not one digit 0 to 3", NULL},
    {"--label|p", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=<$rank>", 0, "label=1 prefix=<$rank>", NULL},
    {"--log-dir=/x|-r3|p", "", 0, "log_dir=/x nofiles=0 redirect=1:3333", NULL},
    {"--log-dir=/dev/null|-t3|-r3|p", "", 0, "log_dir=/dev/null nofiles=1 redirect=0:0000 tee=0:00", NULL},
    {"--log-dir=|p", "", 1, "--log-dir is empty", NULL},
    {"--local-ranks-filter=0,1|--nproc-per-node=2|p", "", 0, "quiet=0:00", NULL},
    {"--local-ranks-filter=1|--nproc-per-node=2|p", "", 0, "quiet=1:10", NULL},
    {"p", "PET_LOCAL_RANKS_FILTER=0,7", 0, "quiet=0:01", "--local-ranks-filter: local rank 7 has no effect"},
    {"--local-ranks-filter=a|p", "", 1, "--local-ranks-filter: \"a\" is not a whole number", NULL},
    {"--local-ranks-filter=|p", "", 0, "quiet=0:00", NULL},
    {"--duplicate-stdout-filters=zz|--duplicate_stderr_filters|zz,y|p", "", 0, "copy=zz,zz,y", NULL},

    /* --- PET_ --- */
    {"p", "PET_NPROC_PER_NODE=2|PET_ROLE=zz|PET_MAX_RESTARTS=3|PET_RDZV_BACKEND=c10d|PET_RDZV_ENDPOINT=localhost:0|PET_RDZV_ID=pj", 0,
     "nproc=2 role=<zz> restarts=3 rdzv=dynamic at=localhost:0 id=pj", NULL},
    {"--nproc_per_node=2|--role=b|p", "PET_NPROC_PER_NODE=x|PET_ROLE=a", 0, "nproc=2 role=<b>", NULL},
    {"p", "PET_NNODES=", 1, "PET_NNODES: \"\"", NULL},
    {"p", "PET_MAX_RESTARTS=", 2, "PET_MAX_RESTARTS: \"\" is not a whole number", NULL},
    {"p", "PET_MAX_RESTARTS=abc", 2, "PET_MAX_RESTARTS: \"abc\"", NULL},
    {"p", "PET_NO_PYTHON=1", 0, "kind=direct", NULL},
    {"p", "PET_NO_PYTHON=2", 0, "kind=direct", NULL},
    {"p", "PET_MODULE=1|PET_NO_PYTHON=0", 0, "kind=module", NULL},
    {"-m|p", "PET_MODULE=0", 0, "kind=module", NULL},
    {"-m|p", "PET_MODULE=yes", 0, "kind=module", NULL},
    {"p", "PET_STANDALONE=yes", 1, "PET_STANDALONE: \"yes\" is not a whole number", NULL},
    {"p", "PET_STANDALONE=", 1, "PET_STANDALONE", NULL},
    {"p", "PET_VIRTUAL_LOCAL_RANK=1", 0, "vlr=1", NULL},
    {"p", "PET_R=3|PET_T=3", 0, "redirect=0:0000", NULL},
    {"p", "PET_REDIRECTS=3", 0, "redirect=1:3333", NULL},
    {"p", "PET_NNODES=2|PET_NPROC_PER_NODE=2|PET_NODE_RANK=1|PET_MASTER_ADDR=m|PET_MASTER_PORT=1234", 0,
     "nodes=2:2 nproc=2 node_rank=1 rdzv=static at=m:1234 id=none", NULL},
    {"p", "XPET_NNODES=9|PET_NNODESX=9", 0, "nodes=1:1", NULL},

    /* --- which rendezvous --- */
    {"--standalone|--rdzv-id=x|--rdzv-backend=c10d|--rdzv-endpoint=n1:1|p", "", 0, "rdzv=standalone at=localhost:0 id=(fresh)", NULL},
    {"--standalone|--nnodes=1:2|p", "", 0, "rdzv=standalone nodes=1:2", NULL},
    {"--standalone|--nnodes=2|p", "", 2, "--standalone is one node, --nnodes wants at least 2", NULL},
    {"--rdzv-id=x|p", "", 0, "rdzv=standalone id=(fresh)", NULL},
    {"--rdzv-backend=static|--rdzv-id=x|p", "", 0, "rdzv=standalone id=(fresh)", NULL},
    {"--node-rank=0|--master-addr=h|p", "", 0, "rdzv=standalone node_rank=-1", NULL},
    {"--master-port=29500|p", "", 0, "rdzv=static at=127.0.0.1:29500 id=none nodes=1:1 jt=900 ct=900", NULL},
    {"--master-port=0|p", "", 0, "rdzv=static at=127.0.0.1:0", NULL},
    {"--master-port=x|p", "", 2, "--master-port: \"x\"", NULL},
    {"--master-port=65536|p", "", 1, "--master-port: 65536 is out of range", NULL},
    {"p", "PET_MASTER_PORT=1234", 0, "rdzv=static at=127.0.0.1:1234", NULL},
    {"--nnodes=2|p", "", 0, "rdzv=static at=127.0.0.1:29500 id=none nodes=2:2 node_rank=-1", NULL},
    {"--nnodes=1:4|p", "", 0, "rdzv=static nodes=4:4", NULL},
    {"--nnodes=2|--node-rank=1|--master-addr=n1|--master-port=1|p", "", 0, "rdzv=static at=n1:1", NULL},
    {"--nnodes=2|--node-rank=1|--master-addr=n1|--master-port=1|p", "", 0, "node_rank=1", NULL},
    {"--nnodes=2|--node-rank=1|--master-addr=n1|p", "", 0, "host=0", NULL},
    {"--nnodes=2|--node-rank=0|--master-addr=n1|p", "", 0, "host=-1", NULL},
    {"--nnodes=2|--master-addr=::1|p", "", 0, "rdzv=static at=::1:29500", NULL},
    {"--nnodes=2|--master-addr=2001:db8::1234|p", "", 0, "at=2001:db8::1234:29500", NULL},
    {"--nnodes=2|--master-addr=bad host|p", "", 1, "--master-addr", NULL},
    {"--nnodes=2|--master-addr=|p", "", 1, "--master-addr", NULL},
    {"--nnodes=2|--master-addr=[::1]|p", "", 1, "--master-addr", NULL},
    {"--nnodes=2|--node-rank=2|p", "", 1, "--node-rank: 2 is not below the number of nodes, 2", NULL},
    {"--nnodes=2|--node-rank=-1|p", "", 1, "--node-rank: -1 is out of range", NULL},
    {"--nnodes=2|--rdzv-endpoint=n1:7|--master-addr=no|--master-port=9|p", "", 0, "rdzv=static at=n1:7", NULL},
    {"--rdzv-endpoint=localhost|p", "", 1, "--rdzv-endpoint: \"localhost\" has no port", NULL},
    {"--rdzv-endpoint=localhost:1|p", "", 0, "rdzv=static at=localhost:1", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=n1|p", "", 0, "rdzv=dynamic at=n1:29400 id=none jt=600 lc=30 ct=60 host=-1", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=n1|p", "", 0, "join=restart", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=n1|--on-join=wait|p", "", 0, "join=wait", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=n1|p", "PET_ON_JOIN=wait", 0, "join=wait", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint= n1:5 |p", "", 0, "rdzv=dynamic at=n1:5", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=[::1]:5|p", "", 0, "at=::1:5", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=::1:29991|p", "", 0, "at=::1:29991", NULL},
    {"--rdzv-backend=c10d|p", "", 0, "rdzv=dynamic at=localhost:29400", "agents meet at localhost:29400"},
    {"--rdzv-backend=c10d|--rdzv-endpoint=|p", "", 0, "at=localhost:29400", "agents meet at localhost:29400"},
    {"--rdzv-backend=c10d|--rdzv-endpoint=localhost:99999|p", "", 1, "--rdzv-endpoint: the port", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=localhost:abc|p", "", 1, "--rdzv-endpoint: the port", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=bad host:1|p", "", 1, "--rdzv-endpoint", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=n1|--node-rank=1|--nnodes=2|p", "", 0, "node_rank=1", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=n1|--node-rank=0|p", "", 0, "node_rank=0", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=n1|--node-rank=2|--nnodes=2|p", "", 1, "--node-rank: 2 is not below the number of nodes, 2", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=n1|--rdzv-id=|p", "", 0, "id=(fresh)", "--rdzv-id is empty"},
    {"--rdzv-backend=c10d|--rdzv-endpoint=n1|--rdzv-id=team/job|p", "", 0, "id=team/job", NULL},
    {"--rdzv-backend=C10D|--rdzv-endpoint=n1|p", "", 1, "--rdzv-backend: \"C10D\" is not one of static, c10d", NULL},
    {"--rdzv-backend=nonesuch|--rdzv-endpoint=localhost:0|p", "", 1, "\"nonesuch\"", NULL},
    {"--rdzv-backend=etcd|--rdzv-endpoint=e:2379|p", "", 1, "--rdzv-backend=etcd is not used here: start rdzv-server", NULL},
    {"--rdzv-backend=etcd-v2|p", "", 1, "--rdzv-backend=etcd-v2 is not used here", NULL},

    /* --- our own --rdzv --- */
    {"--rdzv=n1|--nnodes=2|p", "", 0, "rdzv=dynamic at=n1:29500 id=none nodes=2:2", NULL},
    {"--rdzv|n1:7|p", "", 0, "at=n1:7", NULL},
    {"--rdzv=[fe80::1%eth0]:7|p", "", 1, "--rdzv: fe80::1%eth0 is a link-local address", NULL},
    {"--rdzv=n1|--store-port=29600|p", "", 0, "store=29600", NULL},
    {"--rdzv=n1|--store-port=65536|p", "", 1, "--store-port", NULL},
    {"--rdzv=n1|--store-port=x|p", "", 2, "--store-port", NULL},
    {"--rdzv=n1|p", "PET_STORE_PORT=5", 0, "store=0", NULL},
    {"--rdzv=n1|--rdzv-conf=join_timeout=20|p", "", 0, "jt=20 lc=30 ct=20", NULL},
    {"--rdzv=n1|--rdzv-conf=join_timeout=20,read_timeout=5|p", "", 0, "jt=20 lc=30 ct=5", NULL},
    {"--rdzv=n1|--nnodes=2|--node-rank=1|p", "", 0, "node_rank=1", NULL},
    {"--rdzv=n1|--nnodes=2|--node-rank=2|p", "", 1, "--node-rank", NULL},
    {"--rdzv=n1|--master-port=5|p", "", 0, "rdzv=dynamic at=n1:29500", NULL},
    {"--rdzv=|p", "", 1, "--rdzv: \"\" is not HOST", NULL},
    {"--rdzv=n1:x|p", "", 1, "--rdzv: the port", NULL},
    {"p", "PET_RDZV=n1", 0, "rdzv=dynamic at=n1:29500", NULL},
    {"--rdzv=n1|--standalone|p", "", 2, "--rdzv and --standalone both say where to meet", NULL},
    {"--rdzv=n1|--rdzv-endpoint=n2|p", "", 2, "--rdzv and --rdzv-endpoint both", NULL},
    {"--rdzv=n1|--rdzv-backend=c10d|p", "", 2, "--rdzv and --rdzv-backend both", NULL},
    {"--rdzv=n1|p", "PET_RDZV_BACKEND=c10d|PET_RDZV_ENDPOINT=n2|PET_STANDALONE=1", 0, "rdzv=dynamic at=n1:29500", NULL},
    {"--rdzv-backend=c10d|--rdzv-endpoint=n2|p", "PET_RDZV=n1", 0, "at=n2:29400", NULL},
    {"--standalone|p", "PET_RDZV=n1", 0, "rdzv=standalone", NULL},

    /* --- rdzv-conf --- */
    {"--rdzv=n1|--rdzv-conf=join_timeout=3,last_call_timeout=1,read_timeout=7|p", "", 0, "jt=3 lc=1 ct=7", NULL},
    {"--rdzv=n1|--rdzv-conf= join_timeout = 3 , last_call_timeout=1|p", "", 0, "jt=3 lc=1", NULL},
    {"--rdzv=n1|--rdzv-conf=join_timeout=3,join_timeout=4|p", "", 0, "jt=4", NULL},
    {"--rdzv=n1|--rdzv-conf=join_timeout=0.5|p", "", 0, "jt=0.5", NULL},
    {"--rdzv=n1|--rdzv-conf=timeout=5|p", "", 0, "jt=600 ct=60", NULL},
    {"--nnodes=2|--rdzv-conf=timeout=3,join_timeout=9|p", "", 0, "rdzv=static jt=3 ct=3", NULL},
    {"--rdzv=n1|--rdzv-conf=is_host=1|p", "", 0, "host=1", NULL},
    {"--rdzv=n1|--rdzv-conf=is_host=No|p", "", 0, "host=0", NULL},
    {"--rdzv=n1|--rdzv-conf=is_host=TRUE|p", "", 0, "host=1", NULL},
    {"--rdzv=n1|--rdzv-conf=is_host=maybe|p", "", 1, "is_host=\"maybe\"", NULL},
    {"--rdzv=n1|--rdzv-conf=is_host=trueandmore|p", "", 1, "is_host=", NULL},
    {"--rdzv=n1|--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3,use_libuv=1,heartbeat=1|p", "", 0, "jt=600", NULL},
    {"--rdzv=n1|--rdzv-conf=store_type=tcp|p", "", 0, "jt=600", NULL},
    {"--rdzv=n1|--rdzv-conf=store_type=file|p", "", 1, "store_type=file is not available", NULL},
    {"--rdzv=n1|--rdzv-conf=join_timeot=5|p", "", 0, "jt=600", "the key \"join_timeot\" is not known and has no effect: did you mean join_timeout?"},
    {"--rdzv=n1|--rdzv-conf=xyzzy=5|p", "", 0, "jt=600", "the key \"xyzzy\" is not known and has no effect\n"},
    {"--rdzv=n1|--rdzv-conf=novalue|p", "", 1, "--rdzv-conf: \"novalue\" is not KEY=VALUE", NULL},
    {"--rdzv=n1|--rdzv-conf==1|p", "", 1, "is not KEY=VALUE", NULL},
    {"--rdzv=n1|--rdzv-conf=a=|p", "", 1, "is not KEY=VALUE", NULL},
    {"--rdzv=n1|--rdzv-conf=join_timeout=1,,|p", "", 1, "is not KEY=VALUE", NULL},
    {"--rdzv=n1|--rdzv-conf=join_timeout=x|p", "", 1, "--rdzv-conf: join_timeout: \"x\" is not a number of seconds", NULL},
    {"--rdzv=n1|--rdzv-conf=join_timeout=0|p", "", 1, "--rdzv-conf: join_timeout: 0 s is out of range", NULL},
    {"--rdzv=n1|--rdzv-conf=last_call_timeout=0|p", "", 1, "last_call_timeout", NULL},
    {"--rdzv=n1|--rdzv-conf=heartbeat_timeout=0|p", "", 1, "heartbeat_timeout", NULL},
    {"--rdzv=n1|--rdzv-conf=endpoint=n2|p", "", 1, "endpoint is set by a flag of its own", NULL},
    {"--rdzv=n1|--rdzv-conf=min_nodes=2|p", "", 1, "min_nodes is set by a flag", NULL},
    {"--rdzv-conf=novalue|p", "", 1, "is not KEY=VALUE", NULL},
    {"--rdzv-conf=|p", "", 0, "rdzv=standalone", NULL},

    /* --- leaving in order, hangs, the token --- */
    {"p", "", 0, "service=0 drain=60 notice=(none) hook=<(usual)> hht=10 token=(none)", NULL},
    {"--drain-timeout=0.5|--preemption-url=aws|--hang-hook=x $1|--hang-hook-timeout=2|--token-file=t|p", "", 0,
     "drain=0.5 notice=aws hht=2 token=t", NULL},
    {"--hang-hook=none|p", "", 0, "hook=<>", NULL},
    {"--drain-timeout=soon|p", "", 2, "--drain-timeout: \"soon\" is not a number of seconds", NULL},
    {"--hang-hook-timeout=|p", "", 2, "--hang-hook-timeout", NULL},

    /* --- service mode --- */
    {"--service|--rdzv=n1", "", 0, "service=1 at=n1:29500 slots=0 logs=2.68435e+08:4.29497e+09", NULL},
    {"--service|--rdzv=n1:7|--slots=8|--log-bytes=1M|--log-bytes-all=2M", "", 0, "at=n1:7 slots=8 logs=1.04858e+06:2.09715e+06", NULL},
    {"--service", "", 2, "--service needs --rdzv=HOST[:PORT]", NULL},
    {"--service|--rdzv=n1|--log-bytes=8G", "", 2, "--log-bytes (of one job) may not be greater than --log-bytes-all", NULL},
    {"--service|--rdzv=n1|--log-bytes=x", "", 2, "--log-bytes", NULL},
    {"--service|--rdzv=n1|--slots=0", "", 1, "--slots: 0 is out of range: 1 to 1024", NULL},
    {"--service|--rdzv=n1|--max-restarts=1", "", 2, "--max-restarts is a job's: with --service it comes with the job", NULL},
    {"--service|--rdzv=n1", "PET_MAX_RESTARTS=1", 0, "service=1", NULL},
};
/* clang-format on */

/* Every field of `want` stands in the description, as a whole word. */
static void check_fields(const char *described, const char *want)
{
    for (const char *p = want; *p != '\0';) {
        char field[512] = " ";
        const char *end = strstr(p, "args=") == p ? p + strlen(p) : strchr(p, ' ');
        /* "role=<a b>" and the like hold blanks. */
        if (strncmp(p, "role=<", 6) == 0)
            end = strchr(p, '>') + 1;
        size_t n = end != NULL ? (size_t)(end - p) : strlen(p);
        assert_true(n + 3 < sizeof field);
        memcpy(field + 1, p, n);
        /* A list may go on: only "sigs=2:" leaves its tail open. */
        if (field[n] != ':')
            memcpy(field + 1 + n, " ", 2);
        assert_has(described, field);
        p += n + (p[n] == ' ');
    }
}

static void check_row(const struct row *row)
{
    static struct result r;
    char described[2048];
    parse(&r, row->args, row->env, &with_gpus);
    if (row->exit != 0) {
        if (r.code == 0 || r.exit != row->exit)
            fail_msg("code %d, exit %d, wanted exit %d: %s", r.code, r.exit, row->exit, r.err.msg);
        assert_int_equal(r.code, -EINVAL);
        assert_int_equal(r.err.code, -EINVAL);
        assert_has(r.err.msg, row->want);
        assert_null(strchr(r.err.msg, '\n'));
        return;
    }
    if (r.code != 0)
        fail_msg("refused: %s", r.err.msg);
    describe(&r, described, sizeof described);
    check_fields(described, row->want);
    if (row->note == NULL)
        assert_string_equal(r.notes, "");
    else
        assert_has(r.notes, row->note);
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        print_message("row: %s (%s)\n", rows[i].args, rows[i].env);
        check_row(&rows[i]);
    }
    print_message("%zu rows\n", MU_COUNT(rows));
}

static void test_without_gpus_auto_means_cpus(void **state)
{
    (void)state;
    static struct result r;
    parse(&r, "--nproc-per-node=auto|p", "", &without_gpus);
    assert_int_equal(r.code, 0);
    assert_int_equal(r.o.nproc, 6);
    parse(&r, "--nproc-per-node=gpu|p", "", &without_gpus);
    assert_int_equal(r.exit, 1);
    assert_has(r.err.msg, "no GPU is visible here");
}

static void test_this_machine_has_cpus_and_an_honest_number_of_gpus(void **state)
{
    (void)state;
    static struct result r;
    parse(&r, "--nproc-per-node=cpu|p", "", &agent_machine_real);
    assert_int_equal(r.code, 0);
    uint32_t cpus = r.o.nproc;
    assert_true(cpus >= 1);
    assert_int_equal(agent_machine_real.gpus(""), 0);
    assert_int_equal(agent_machine_real.gpus("-1"), 0);
    uint32_t all = agent_machine_real.gpus(NULL);
    assert_true(agent_machine_real.gpus("0,1,-1,2") <= 2);
    assert_int_equal(agent_machine_real.gpus("0"), all > 0 ? 1 : 0);
    parse(&r, "--nproc-per-node=auto|p", "", &agent_machine_real);
    assert_int_equal(r.o.nproc, all > 0 ? all : cpus);
}

static void test_signals_are_numbers(void **state)
{
    (void)state;
    static struct result r;
    parse(&r, "--signals-to-handle=SIGUSR1,SIGTERM,SIGPOLL,SIGIOT|p", "", &with_gpus);
    static const int want[] = {SIGUSR1, SIGTERM, SIGIO, SIGABRT};
    assert_int_equal(r.o.signal_count, MU_COUNT(want));
    for (size_t i = 0; i < MU_COUNT(want); i++)
        assert_int_equal(r.o.signals[i], want[i]);
}

static void test_help_and_version_end_the_reading(void **state)
{
    (void)state;
    static struct result r;
    static const char *const help[] = {
        "--help", "-h", "--he", "--nnodes=2|--help|--bogus", "-mh", "-h|p", "--help|--nnodes"};
    for (size_t i = 0; i < MU_COUNT(help); i++) {
        parse(&r, help[i], "PET_NNODES=x", &with_gpus);
        assert_int_equal(r.code, 0);
        assert_int_equal(r.o.mode, AGENT_SHOW_HELP);
    }
    parse(&r, "--version", "", &with_gpus);
    assert_int_equal(r.code, 0);
    assert_int_equal(r.o.mode, AGENT_SHOW_VERSION);
    parse(&r, "--bogus|--help", "", &with_gpus);
    assert_int_equal(r.exit, 2);
    parse(&r, "--help=1", "", &with_gpus);
    assert_int_equal(r.exit, 2);
}

/* A flag of ours must not take a prefix that torchrun's users type. */
static void test_every_prefix_that_torchrun_takes_is_taken(void **state)
{
    (void)state;
    for (size_t i = 0; i < option_count; i++) {
        const struct option_row *row = &option_rows[i];
        if ((row->flags & (OPTION_OWN | OPTION_ACTS)) != 0)
            continue;
        for (size_t n = 1; n <= strlen(row->name); n++) {
            size_t fits = 0;
            for (size_t j = 0; j < option_count; j++)
                fits += (option_rows[j].flags & OPTION_OWN) == 0 &&
                        strncmp(option_rows[j].name, row->name, n) == 0;
            static struct result r;
            char word[64];
            (void)snprintf(word, sizeof word, "--%.*s%s|p", (int)n, row->name,
                           row->value != NULL ? "=1" : "");
            parse(&r, word, "", &with_gpus);
            bool whole = strlen(row->name) == n;
            bool ambiguous = strstr(r.err.msg, "could mean") != NULL;
            if (ambiguous != (fits > 1 && !whole))
                /* "rdzv" alone is our own flag. */
                assert_true(strncmp(word, "--rdzv=", 7) == 0);
            assert_null(strstr(r.err.msg, "unknown flag"));
        }
    }
}

static void test_names_are_unique_and_texts_are_there(void **state)
{
    (void)state;
    struct mu_buf help;
    struct mu_buf man;
    mu_buf_init(&help, mu_mem_default());
    mu_buf_init(&man, mu_mem_default());
    agent_options_help(&help, "torchrun");
    agent_options_man(&man);
    assert_has(mu_buf_cstr(&help), "usage: torchrun [--nnodes N|MIN:MAX]");
    for (size_t i = 0; i < option_count; i++) {
        char flag[64];
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(option_rows[i].name, option_rows[j].name);
            if (option_rows[i].letter != 0)
                assert_int_not_equal(option_rows[i].letter, option_rows[j].letter);
        }
        assert_true(strlen(option_rows[i].doc) > 10);
        (void)snprintf(flag, sizeof flag, "--%s", option_rows[i].name);
        assert_has(mu_buf_cstr(&help), flag);
    }
    size_t entries = 0;
    for (const char *p = mu_buf_cstr(&man); (p = strstr(p, ".TP\n")) != NULL; p++)
        entries++;
    assert_int_equal(entries, option_count);
    for (const char *p = mu_buf_cstr(&help); *p != '\0';) { /* Fits a terminal of 100 columns. */
        size_t n = strcspn(p, "\n");
        assert_true(n <= 101);
        p += n + (p[n] == '\n');
    }
    mu_buf_fini(&help);
    mu_buf_fini(&man);
}

/* Warnings need memory; without it the reading fails and says so. */
static void test_no_memory_for_warnings_is_said(void **state)
{
    (void)state;
    static struct agent_options o;
    struct line argv;
    struct line envp;
    struct mu_mem_failing heap;
    struct mu_buf notes;
    struct mu_err err = {0};
    int code = 0;
    split(&argv, "node-agent", "--signals-to-handle=SIGNONE|p");
    split(&envp, NULL, "");
    mu_mem_failing_init(&heap, 1);
    mu_buf_init(&notes, &heap.mem);
    assert_int_equal(agent_options_parse(&o, argv.count, argv.words, envp.words, &with_gpus, &notes,
                                         &code, &err),
                     -ENOMEM);
    assert_int_equal(code, 1);
    mu_buf_fini(&notes);
    assert_int_equal(heap.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_without_gpus_auto_means_cpus),
        cmocka_unit_test(test_this_machine_has_cpus_and_an_honest_number_of_gpus),
        cmocka_unit_test(test_signals_are_numbers),
        cmocka_unit_test(test_help_and_version_end_the_reading),
        cmocka_unit_test(test_every_prefix_that_torchrun_takes_is_taken),
        cmocka_unit_test(test_names_are_unique_and_texts_are_there),
        cmocka_unit_test(test_no_memory_for_warnings_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
