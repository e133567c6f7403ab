/* What launchers say, read from captures of their environments (tests/data/launchers), through the
 * command line as a user types it: one row, one environment, and what must come of it. */
#include <errno.h>
#include <stdlib.h>

#include "tests/unit/unit.h"

#include "agent/options.h"

#define WORDS_MAX 160

/* --- a machine --- */

static const char *own_name;
static const char *own_addresses;  /* Blank before and after each. */
static const char *near_addresses; /* So too. */
static const char *hosts_text;     /* Any file's text; NULL: there is none. */
static char shared_by_first[256];
static int share_calls;

static const char *fake_host(void)
{
    return own_name;
}

static bool is_in(const char *list, const char *word)
{
    char padded[128];
    (void)snprintf(padded, sizeof padded, " %s ", word);
    return strstr(list, padded) != NULL;
}

static bool fake_own(const char *address)
{
    return is_in(own_addresses, address);
}

static bool fake_near(const char *address)
{
    return is_in(near_addresses, address);
}

static const char *fake_file(const char *path, struct mu_err *err)
{
    if (hosts_text == NULL)
        (void)mu_err_set(err, -ENOENT, "%s: No such file or directory", path);
    return hosts_text;
}

static int fake_share(
    int fd, bool is_first, const char *own, char *ret_shared, char *ret_job, struct mu_err *err)
{
    (void)err;
    share_calls++;
    assert_int_equal(fd, 8); /* Of the capture. */
    if (is_first)
        (void)snprintf(shared_by_first, sizeof shared_by_first, "%s", own);
    (void)snprintf(ret_shared, MU_HOST_BYTES, "%s", is_first ? own : shared_by_first);
    (void)snprintf(ret_job, SURROUNDINGS_ID_BYTES, "kvs_1/2");
    return 0;
}

static uint32_t three(void)
{
    return 3;
}

static uint32_t none(const char *visible)
{
    (void)visible;
    return 0;
}

static const struct surroundings_machine around = {fake_host, fake_own, fake_near, fake_file,
                                                   fake_share};
static const struct agent_machine machine = {three, none, &around, NULL};

static void reset_machine(void)
{
    own_name = "n2.cluster.example";
    own_addresses = " 10.0.0.2 fd00::22 ";
    near_addresses = " 10.0.0.1 10.0.0.2 ";
    hosts_text = NULL;
    share_calls = 0;
    (void)snprintf(shared_by_first, sizeof shared_by_first, "n1");
}

/* --- rows --- */

struct words {
    char bytes[8192];
    char *words[WORDS_MAX + 1];
    size_t n;
    size_t used;
};

static void add_word(struct words *w, const char *p, size_t n)
{
    const char *eq = memchr(p, '=', n);
    size_t name = eq != NULL ? (size_t)(eq - p) + 1 : n;
    for (size_t i = 0; eq != NULL && i < w->n; i++) { /* The later one replaces. */
        if (strncmp(w->words[i], p, name) != 0)
            continue;
        w->words[i] = w->words[--w->n];
        break;
    }
    assert_true(w->n < WORDS_MAX && w->used + n + 1 <= sizeof w->bytes);
    memcpy(w->bytes + w->used, p, n);
    w->bytes[w->used + n] = '\0';
    w->words[w->n++] = w->bytes + w->used;
    w->words[w->n] = NULL;
    w->used += n + 1;
}

static void add_words(struct words *w, const char *text, char between)
{
    char stop[2] = {between, '\0'};
    while (*text != '\0') {
        size_t n = strcspn(text, stop);
        if (n > 0 && !(between == '\n' && *text == '#'))
            add_word(w, text, n);
        text += n + (text[n] == between);
    }
}

static void remove_word(struct words *w, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < w->n; i++)
        if (strncmp(w->words[i], name, n) == 0 && w->words[i][n] == '=')
            w->words[i] = w->words[--w->n];
    w->words[w->n] = NULL;
}

static void add_capture(struct words *w, const char *name)
{
    char path[512];
    char text[8192];
    (void)snprintf(path, sizeof path, "%s/tests/data/launchers/%s.env", MUSTER_SOURCE_DIR, name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    assert_true(n > 0 && n < sizeof text - 1);
    text[n] = '\0';
    (void)fclose(f);
    add_words(w, text, '\n');
}

struct result {
    int code;
    int exit;
    struct mu_err err;
    char notes[1024];
    char shown[1024];
    struct agent_options o;
    struct words argv;
    struct words envp;
};

static void describe(struct result *r)
{
    static const char *const rdzv[] = {"standalone", "static", "dynamic"};
    const struct agent_options *o = &r->o;
    (void)snprintf(r->shown, sizeof r->shown,
                   " nodes=%u:%u rank=%d nproc=%u %s at=%s:%u host=%d all=%d id=%s ct=%g ",
                   o->nodes_min, o->nodes_max, o->node_rank, o->nproc, rdzv[o->rdzv],
                   o->endpoint.host, o->endpoint.port, o->is_host, o->serves_everywhere,
                   o->run_id != NULL ? o->run_id : "(fresh)", (double)o->connect_timeout_ns / 1e9);
}

/* `env`: "A=B|-C": set A, unset C. */
static void parse(struct result *r, const char *capture, const char *env, const char *args)
{
    struct mu_buf notes;
    *r = (struct result){.exit = -1};
    if (capture != NULL)
        add_capture(&r->envp, capture);
    while (*env != '\0') {
        char one[256];
        size_t n = strcspn(env, "|");
        (void)snprintf(one, sizeof one, "%.*s", (int)n, env);
        if (one[0] == '-')
            remove_word(&r->envp, one + 1);
        else
            add_word(&r->envp, one, n);
        env += n + (env[n] == '|');
    }
    add_words(&r->argv, "node-agent", '|');
    add_words(&r->argv, args, '|');
    mu_buf_init(&notes, mu_mem_default());
    r->code = agent_options_parse(&r->o, (int)r->argv.n, r->argv.words, r->envp.words, &machine,
                                  &notes, &r->exit, &r->err);
    (void)snprintf(r->notes, sizeof r->notes, "%s", mu_buf_cstr(&notes));
    mu_buf_fini(&notes);
    if (r->code == 0)
        describe(r);
}

struct row {
    const char *capture; /* Of tests/data/launchers; NULL: an empty environment. */
    const char *env;
    const char *args;
    int exit;         /* 0: taken. */
    const char *want; /* Taken: fields with blanks between. Refused: part of the sentence. */
    const char *note; /* Part of what is said; NULL: nothing. */
};

#define SLURM_SAYS                                                                                 \
    "taken from Slurm: --nnodes=2 (SLURM_STEP_NUM_NODES) --node-rank=1 (SLURM_NODEID) --rdzv=n1:"
/* clang-format off */
static const struct row rows[] = {
    /* --- nothing there: as before --- */
    {NULL, "", "p", 0, "nodes=1:1 rank=-1 nproc=1 standalone id=(fresh)", NULL},
    {NULL, "", "--surroundings=slurm|p", 1, "--surroundings=slurm: SLURM_JOB_ID is not set here: start it with srun", NULL},
    {NULL, "", "--surroundings=openmpi|p", 1, "OMPI_COMM_WORLD_SIZE is not set here: start it with mpirun", NULL},
    {NULL, "", "--surroundings=pmi|p", 1, "PMI_FD is not set here: start it with mpiexec", NULL},
    {NULL, "", "--surroundings=kubernetes|p", 1, "KUBERNETES_SERVICE_HOST is not set here", NULL},
    {NULL, "", "--surroundings=lsf|p", 2, "\"lsf\" is not one of auto|none|slurm|openmpi|pmi|kubernetes", NULL},
    {NULL, "PET_SURROUNDINGS=lsf", "p", 2, "PET_SURROUNDINGS: \"lsf\" is not one of auto|none|", NULL},

    /* --- Slurm --- */
    {"slurm-step", "", "p", 0, "nodes=2:2 rank=1 nproc=1 dynamic at=n1:20001 host=0 all=0 id=slurm-1.0 ct=600",
     SLURM_SAYS "20001 (SLURM_STEP_NODELIST) --rdzv-id=slurm-1.0 (SLURM_JOB_ID, SLURM_STEP_ID)\n"},
    {"slurm-step", "SLURM_NODEID=0|SLURM_PROCID=0", "--nproc-per-node=4|p", 0, "nodes=2:2 rank=0 nproc=4 dynamic at=n1:20001 host=-1", "--node-rank=0"},
    {"slurm-step", "SLURM_STEP_ID=7|SLURM_JOB_ID=123456", "p", 0, "at=n1:22519 id=slurm-123456.7", SLURM_SAYS},
    {"slurm-step", "SLURM_RESTART_COUNT=2", "p", 0, "at=n1:24035 id=slurm-1.0-requeue2", "SLURM_RESTART_COUNT"},
    {"slurm-step", "SLURM_RESTART_COUNT=0", "p", 0, "id=slurm-1.0", SLURM_SAYS},
    {"slurm-step", "SLURM_STEP_NODELIST=gpu[007-009,12],x", "p", 0, "at=gpu007:20001", "--rdzv=gpu007:20001"},
    {"slurm-step", "-SLURM_STEP_NODELIST", "p", 0, "at=n1:20001", "(SLURM_JOB_NODELIST)"},
    {"slurm-step", "SLURM_STEP_NODELIST=n[1-", "p", 1, "SLURM_STEP_NODELIST: \"n[1-\" is not a list of hosts as n[1-3],m5: give --rdzv=HOST", NULL},
    {"slurm-step", "SLURM_NODEID=2", "p", 1, "SLURM_NODEID", NULL},
    {"slurm-step", "-SLURM_STEP_NUM_NODES", "p", 1, "SLURM_STEP_NUM_NODES is not set here", NULL},
    {"slurm-step", "SLURM_STEP_NUM_TASKS=4|SLURM_NTASKS=4", "p", 1, "srun started 4 tasks on 2 nodes, and one agent a node is wanted: srun --ntasks-per-node=1", NULL},
    {"slurm-step", "SLURM_STEP_NUM_TASKS=4|SLURM_PROCID=3", "--surroundings=slurm|p", 0, "nodes=4:4 rank=3 at=n1:20001", "--nnodes=4 (SLURM_STEP_NUM_TASKS) --node-rank=3 (SLURM_PROCID)"},
    {"slurm-step", "SLURM_STEP_NUM_NODES=1|SLURM_STEP_NUM_TASKS=2|SLURM_NODEID=0", "p", 1, "srun started 2 tasks on 1 node, and", NULL},
    {"slurm-step", "SLURM_STEP_NUM_NODES=1|SLURM_STEP_NUM_TASKS=1|SLURM_NODEID=0", "p", 0, "nodes=1:1 standalone id=(fresh)", NULL},
    {"slurm-step", "SLURM_HET_SIZE=2", "p", 1, "this Slurm job has 2 parts, and none knows of the others' nodes: give --nnodes and --rdzv=HOST", NULL},
    {"slurm-step", "SLURM_HET_SIZE=2", "--nnodes=4|--rdzv=head|p", 0, "nodes=4:4 at=head:29500", NULL},
    {"slurm-step", "SLURM_HET_SIZE=2", "--surroundings=slurm|p", 0, "nodes=2:2 rank=1", SLURM_SAYS},
    {"slurm-step-pmi2", "", "p", 0, "nodes=2:2 rank=1 at=n1:21010 id=slurm-1.1", SLURM_SAYS},
    {"slurm-batch", "", "p", 1, "Slurm job 1 has 2 nodes, and this is no step of it: type srun --ntasks-per-node=1 in front", NULL},
    {"slurm-batch", "SLURM_STEP_ID=4294967290", "p", 1, "this is no step of it", NULL}, /* salloc's shell. */
    {"slurm-batch", "-SLURM_JOB_NUM_NODES", "p", 1, "has 2 nodes", NULL},
    {"slurm-batch", "", "--standalone|p", 0, "nodes=1:1 standalone", NULL},
    {"slurm-batch", "", "--surroundings=none|p", 0, "nodes=1:1 standalone", NULL},
    {"slurm-batch", "SLURM_JOB_NUM_NODES=1|SLURM_NNODES=1", "p", 0, "nodes=1:1 standalone", NULL},

    /* --- a flag beats, and so does a PET_ variable --- */
    {"slurm-step", "", "--surroundings=none|p", 0, "nodes=1:1 standalone", NULL},
    {"slurm-step", "PET_SURROUNDINGS=none", "p", 0, "nodes=1:1 standalone", NULL},
    {"slurm-step", "", "--standalone|p", 0, "standalone", NULL},
    {"slurm-step", "", "--nnodes=1|p", 0, "nodes=1:1 standalone", NULL},
    {"slurm-step", "", "--nnodes=1:2|p", 0, "nodes=1:2 rank=1 at=n1:20001", "taken from Slurm: --node-rank=1 (SLURM_NODEID) --rdzv="},
    {"slurm-step", "", "--rdzv-id=mine|p", 0, "nodes=2:2 rank=1 at=n1:20001 id=mine", "--rdzv=n1:20001 (SLURM_STEP_NODELIST)\n"},
    {"slurm-step", "", "--node-rank=0|p", 0, "nodes=2:2 rank=0 at=n1:20001", "--nnodes=2"},
    {"slurm-step", "", "--rdzv=head|p", 0, "nodes=2:2 rank=1 at=head:29500 host=-1 id=slurm-1.0 ct=60", "--node-rank=1 (SLURM_NODEID) --rdzv-id=slurm-1.0"},
    {"slurm-step", "", "--rdzv=head|--nnodes=2|p", 0, "nodes=2:2 rank=-1 at=head:29500 id=none", NULL},
    {"slurm-step", "", "--nnodes=2|--rdzv-backend=c10d|--rdzv-endpoint=head:1234|p", 0, "nodes=2:2 rank=-1 at=head:1234 id=none", NULL},
    {"slurm-step", "", "--rdzv-endpoint=head:1234|--rdzv-backend=c10d|p", 0, "nodes=1:1 at=head:1234", NULL},
    {"slurm-step", "", "--nnodes=2|--node-rank=1|--master-addr=head|p", 0, "nodes=2:2 rank=1 static at=head:29500", NULL},
    {"slurm-step", "PET_NNODES=3|PET_NODE_RANK=2|PET_MASTER_ADDR=head|PET_MASTER_PORT=77", "p", 0, "nodes=3:3 rank=2 static at=head:77", NULL},
    {"slurm-step", "", "--nnodes=1|--rdzv=head|p", 0, "nodes=1:1 at=head:29500", NULL},
    {"slurm-step", "TORCHELASTIC_RUN_ID=x", "p", 0, "nodes=1:1 standalone", NULL}, /* In a worker. */
    {"slurm-step", "TORCHELASTIC_RUN_ID=x", "--surroundings=slurm|p", 0, "nodes=2:2", SLURM_SAYS},
    {"slurm-step", "", "--rdzv-conf=is_host=1,read_timeout=7|p", 0, "rank=1 host=1 ct=7", SLURM_SAYS},

    /* --- Open MPI --- */
    {"openmpi-4", "", "p", 1, "OMPI_COMM_WORLD_LOCAL_SIZE=2: one agent a node is wanted: start it with mpirun --map-by ppr:1:node", NULL},
    {"openmpi-4", "", "--surroundings=openmpi|p", 0, "nodes=2:2 rank=1 dynamic at=192.0.2.2:25964 host=0 all=1 id=openmpi-1536032769 ct=600",
     "taken from Open MPI: --nnodes=2 (OMPI_COMM_WORLD_SIZE) --node-rank=1 (OMPI_COMM_WORLD_RANK) --rdzv=192.0.2.2:25964 (OMPI_MCA_orte_hnp_uri) "
     "--rdzv-id=openmpi-1536032769 (PMIX_NAMESPACE)\n"},
    {"openmpi-4", "OMPI_COMM_WORLD_LOCAL_SIZE=1|OMPI_MCA_orte_hnp_uri=1.0;tcp://172.17.0.1,10.0.0.1:5;tcp6://[fd00::1]:6", "p", 0, "at=10.0.0.1:25964", "Open MPI"},
    {"openmpi-4", "OMPI_COMM_WORLD_LOCAL_SIZE=1|OMPI_MCA_orte_hnp_uri=1.0;tcp6://[fd00::1],[fd00::3]:6", "p", 0, "at=fd00::1:25964", "--rdzv=[fd00::1]:25964"},
    {"openmpi-4", "OMPI_COMM_WORLD_LOCAL_SIZE=1|OMPI_COMM_WORLD_RANK=0|OMPI_MCA_orte_hnp_uri=1.0;tcp://10.0.0.1,10.0.0.2:5", "p", 0, "rank=0 at=10.0.0.2:25964 host=-1 all=1", "Open MPI"},
    {"openmpi-4", "OMPI_COMM_WORLD_LOCAL_SIZE=1|OMPI_COMM_WORLD_RANK=0", "p", 1, "mpirun runs on 192.0.2.2, and rank 0 elsewhere: nobody there can serve", NULL},
    {"openmpi-4", "OMPI_COMM_WORLD_LOCAL_SIZE=1|OMPI_MCA_orte_hnp_uri=nonsense", "p", 1, "OMPI_MCA_orte_hnp_uri: no address in \"nonsense\": give --rdzv=HOST", NULL},
    {"openmpi-4", "OMPI_COMM_WORLD_LOCAL_SIZE=1|-OMPI_MCA_orte_hnp_uri", "p", 1, "OMPI_MCA_orte_hnp_uri is not set, as with Open MPI 5): give --rdzv=HOST", NULL},
    {"openmpi-4", "OMPI_COMM_WORLD_LOCAL_SIZE=1|-OMPI_MCA_orte_hnp_uri", "--rdzv=n1|p", 0, "nodes=2:2 rank=1 at=n1:29500 id=openmpi-1536032769", "Open MPI"},
    {"openmpi-4", "OMPI_COMM_WORLD_SIZE=1|OMPI_COMM_WORLD_RANK=0|OMPI_COMM_WORLD_LOCAL_SIZE=1", "p", 0, "standalone", NULL},
    {"openmpi-4", "OMPI_COMM_WORLD_RANK=5", "p", 1, "OMPI_COMM_WORLD_RANK", NULL},
    /* mpirun in an allocation of Slurm starts its helpers with srun. */
    {"openmpi-4", "OMPI_COMM_WORLD_LOCAL_SIZE=1|SLURM_JOB_ID=9|SLURM_STEP_ID=0|SLURM_NNODES=2", "p", 0, "nodes=2:2 rank=1 id=openmpi-1536032769", "Open MPI"},

    /* --- Hydra --- */
    {"hydra", "", "p", 1, "MPI_LOCALNRANKS=2: one agent a node is wanted: start it with mpiexec -ppn 1", NULL},
    {"hydra", "", "--surroundings=pmi|p", 0, "nodes=2:2 rank=1 dynamic at=n1:22708 host=0 id=pmi-kvs_1_2 ct=600",
     "taken from PMI: --nnodes=2 (PMI_SIZE) --node-rank=1 (PMI_RANK) --rdzv=n1:22708 (rank 0, over PMI_FD) --rdzv-id=pmi-kvs_1_2 (PMI's job name)\n"},
    {"hydra", "MPI_LOCALNRANKS=1|PMI_RANK=0", "p", 0, "rank=0 at=vm:22708 host=-1", "--rdzv=vm:22708"},
    {"hydra", "MPI_LOCALNRANKS=1|PMI_RANK=0|-MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "p", 0, "at=n2.cluster.example:22708", "PMI"},
    {"hydra", "MPI_LOCALNRANKS=1|-PMI_FD", "p", 1, "PMI_FD is not set, so rank 0 cannot tell the others where it is: give --rdzv=HOST", NULL},
    {"hydra", "MPI_LOCALNRANKS=1|-PMI_FD", "--rdzv=n1|p", 0, "nodes=2:2 rank=1 at=n1:29500 id=none", "--nnodes=2"},
    {"hydra", "MPI_LOCALNRANKS=1|PMI_SIZE=x", "p", 1, "PMI_SIZE", NULL},
    {"hydra-in-slurm", "", "p", 1, "MPI_LOCALNRANKS=2: one agent a node is wanted", NULL},
    {"hydra-in-slurm", "PMI_FD=8", "--surroundings=pmi|p", 0, "nodes=4:4 rank=3 id=pmi-kvs_1_2", "PMI"},
    {"hydra-in-slurm", "PMI_FD=8|MPI_LOCALNRANKS=1", "p", 0, "nodes=4:4 rank=3 at=n1:22708 id=pmi-kvs_1_2", "PMI"},

    /* --- Kubernetes: operators that speak torchrun's variables, and older ones --- */
    {"kubernetes-pytorchjob-pet", "", "p", 0, "nodes=3:3 rank=1 nproc=2 static at=train-master-0:23456", NULL},
    {"kubernetes-pytorchjob", "", "p", 0, "nodes=3:3 rank=1 nproc=1 dynamic at=train-master-0:23456 host=0 all=1 id=none ct=600",
     "taken from Kubernetes: --nnodes=3 (WORLD_SIZE) --node-rank=1 (RANK) --rdzv=train-master-0:23456 (MASTER_ADDR, MASTER_PORT)\n"},
    {"kubernetes-pytorchjob", "RANK=0|MASTER_ADDR=localhost", "p", 0, "rank=0 at=localhost:23456 host=-1 all=1", "Kubernetes"},
    {"kubernetes-pytorchjob", "-KUBERNETES_SERVICE_HOST", "p", 0, "standalone", NULL},
    {"kubernetes-pytorchjob", "RANK=3", "p", 1, "RANK", NULL},
    {"kubernetes-pytorchjob", "WORLD_SIZE=1|RANK=0", "p", 0, "standalone", NULL},
    {NULL, "KUBERNETES_SERVICE_HOST=1.2.3.4", "p", 0, "standalone", NULL},
};
/* clang-format on */

static void check_row(const struct row *row)
{
    static struct result r;
    reset_machine();
    parse(&r, row->capture, row->env, row->args);
    if (row->exit != 0) {
        if (r.code != -EINVAL || r.exit != row->exit || strstr(r.err.msg, row->want) == NULL)
            fail_msg("'%s' with '%s' of %s: status %d, \"%s\"; wanted %d, \"%s\"", row->args,
                     row->env, row->capture, r.exit, r.err.msg, row->exit, row->want);
        assert_true(strlen(r.err.msg) < sizeof r.err.msg - 1); /* Whole. */
        return;
    }
    if (r.code != 0)
        fail_msg("'%s' with '%s' of %s was refused: \"%s\"", row->args, row->env, row->capture,
                 r.err.msg);
    for (const char *p = row->want; *p != '\0';) {
        size_t n = strcspn(p, " ");
        char field[256];
        (void)snprintf(field, sizeof field, " %.*s ", (int)n, p);
        if (strstr(r.shown, field) == NULL)
            fail_msg("'%s' with '%s' of %s gives '%s', without '%s'", row->args, row->env,
                     row->capture, r.shown, field);
        p += n + (p[n] == ' ');
    }
    if (row->note == NULL)
        assert_string_equal(r.notes, "");
    else
        assert_has(r.notes, row->note);
}

static void test_captures_give_what_the_row_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < MU_COUNT(rows); i++)
        check_row(&rows[i]);
}

/* --- the pods of an Indexed Job and of a JobSet --- */

static const char kubelet_hosts[] =
    "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n"
    "10.244.1.7\ttrain-1.workers.ai.svc.cluster.local\ttrain-1\n";

static void
in_pod(struct result *r, const char *name, const char *hosts, const char *env, const char *args)
{
    reset_machine();
    own_name = name;
    hosts_text = hosts;
    parse(r, "kubernetes-indexed", env, args);
}

static void test_an_indexed_job_meets_at_its_first_pod(void **state)
{
    (void)state;
    static struct result r;
    in_pod(&r, "train-1", kubelet_hosts, "", "p");
    assert_int_equal(r.code, 0);
    assert_has(r.shown,
               " nodes=4:4 rank=1 nproc=1 dynamic at=train-0.workers.ai.svc.cluster.local:29500 "
               "host=0 all=0 id=kubernetes-train ct=600 ");
    assert_has(
        r.notes,
        "taken from Kubernetes: --nnodes=4 (MUSTER_NNODES) --node-rank=1 (JOB_COMPLETION_INDEX) "
        "--rdzv=train-0.workers.ai.svc.cluster.local:29500 (the pod's name and /etc/hosts) "
        "--rdzv-id=kubernetes-train (the pod's name)\n");
    in_pod(&r, "train-1.workers.ai.svc.cluster.local", kubelet_hosts, "",
           "p"); /* setHostnameAsFQDN */
    assert_has(r.shown, " at=train-0.workers.ai.svc.cluster.local:29500 ");
    in_pod(&r, "train-1", kubelet_hosts, "-MUSTER_NNODES|PET_NNODES=2:4", "p");
    assert_has(r.shown, " nodes=2:4 rank=1 ");
    in_pod(&r, "train-1", kubelet_hosts, "", "--rdzv=head|p");
    assert_has(
        r.shown,
        " nodes=4:4 rank=1 nproc=1 dynamic at=head:29500 host=-1 all=0 id=kubernetes-train ");
    in_pod(&r, "node7", NULL, "", "--rdzv=head|p"); /* On the node's own network. */
    assert_has(r.shown, " nodes=4:4 rank=1 nproc=1 dynamic at=head:29500 host=-1 all=0 id=none ");
}

static void test_a_pod_without_a_name_for_others_says_what_to_write(void **state)
{
    (void)state;
    static struct result r;
    static const char bare[] = "127.0.0.1 localhost\n10.244.1.7\ttrain-1\n";
    in_pod(&r, "train-1", bare, "", "p");
    assert_int_equal(r.exit, 1);
    assert_has(r.err.msg,
               "this pod, train-1, has no name that others know: set subdomain in its template "
               "to the name of a headless Service");
    in_pod(&r, "train-1", NULL, "", "p");
    assert_has(r.err.msg, "/etc/hosts: No such file");
    in_pod(&r, "node7", kubelet_hosts, "", "p"); /* On the node's own network. */
    assert_has(r.err.msg, "this pod, node7, is not named JOB-1");
    in_pod(&r, "train-1", kubelet_hosts, "MUSTER_NNODES=1", "p");
    assert_has(r.err.msg, "this is pod 1, and MUSTER_NNODES says that there are 1");
    in_pod(&r, "train-1", kubelet_hosts, "-MUSTER_NNODES", "p");
    assert_int_equal(r.code, 0);
    assert_has(r.shown, " standalone ");
    assert_has(r.notes, "set MUSTER_NNODES in the manifest to the Job's completions");
    in_pod(&r, "train-1", kubelet_hosts, "-MUSTER_NNODES", "--surroundings=kubernetes|p");
    assert_has(r.err.msg, "how many pods there are is not told: set MUSTER_NNODES");
    in_pod(&r, "train-1", kubelet_hosts, "-MUSTER_NNODES", "--standalone|p");
    assert_string_equal(r.notes, "");
}

static void test_a_jobset_counts_through_its_jobs(void **state)
{
    (void)state;
    static struct result r;
    static const char hosts[] = "10.244.1.7\tset-w-2-1.set.ai.svc.cluster.local\tset-w-2-1\n";
    static const char more[] = "MUSTER_NNODES=6|MUSTER_JOB_INDEX=2|MUSTER_PODS_PER_JOB=2";
    in_pod(&r, "set-w-2-1", hosts, more, "p");
    assert_int_equal(r.code, 0);
    assert_has(
        r.shown,
        " nodes=6:6 rank=5 nproc=1 dynamic at=set-w-0-0.set.ai.svc.cluster.local:29500 host=0 "
        "all=0 id=kubernetes-set-w ");
    assert_has(r.notes,
               "--node-rank=5 (MUSTER_JOB_INDEX, MUSTER_PODS_PER_JOB, JOB_COMPLETION_INDEX)");
    in_pod(&r, "set-w-2-1", hosts, "MUSTER_JOB_INDEX=2", "p");
    assert_has(r.err.msg, "MUSTER_PODS_PER_JOB is not set here");
    in_pod(&r, "set-w-2-1", hosts, "MUSTER_NNODES=6|MUSTER_JOB_INDEX=2|MUSTER_PODS_PER_JOB=1", "p");
    assert_has(r.err.msg, "MUSTER_PODS_PER_JOB is its completions");
    in_pod(&r, "set-w-3-1", "1 set-w-3-1.set", more, "p");
    assert_has(r.err.msg, "MUSTER_JOB_INDEX=2 does not fit this pod's name, set-w-3-1");
}

/* --- host files --- */

static void with_hostfile(struct result *r, const char *text, const char *args)
{
    char words[256];
    reset_machine();
    hosts_text = text;
    (void)snprintf(words, sizeof words, "--hostfile=hosts|%s", args);
    parse(r, NULL, "", words);
}

static void hostfile_gives(const char *text, const char *args, const char *want)
{
    static struct result r;
    with_hostfile(&r, text, args);
    if (r.code != 0)
        fail_msg("'%s' was refused: %s", text, r.err.msg);
    if (strstr(r.shown, want) == NULL)
        fail_msg("'%s' gives '%s', without '%s'", text, r.shown, want);
}

static void hostfile_fails(const char *text, const char *args, const char *want)
{
    static struct result r;
    with_hostfile(&r, text, args);
    if (r.code == 0 || strstr(r.err.msg, want) == NULL || strlen(r.err.msg) >= sizeof r.err.msg - 1)
        fail_msg("'%s' gives \"%s\", without \"%s\"", text, r.err.msg, want);
}

static void test_a_host_file_says_who_meets_where(void **state)
{
    (void)state;
    hostfile_gives("n1\nn2\n", "p",
                   " nodes=2:2 rank=1 nproc=1 dynamic at=n1:29500 host=0 all=0 id=none ct=600 ");
    hostfile_gives("# a\n\n  n2 slots=4 # mine\r\nn1:8", "p",
                   " nodes=2:2 rank=0 nproc=4 dynamic at=n2:29500 host=-1 ");
    hostfile_gives("n1\nN2.Cluster.Example max_slots=9 slots=2\n", "p", " rank=1 nproc=2 ");
    hostfile_gives("n1\n10.0.0.2:3\nn3\n", "p", " nodes=3:3 rank=1 nproc=3 ");
    hostfile_gives("fd00::1\nfd00::22\n", "p", " rank=1 nproc=1 dynamic at=fd00::1:29500 ");
    hostfile_gives("[fd00::1]\n[fd00::22]:2\n", "p", " rank=1 nproc=2 dynamic at=fd00::1:29500 ");
    hostfile_gives("n1\nn2:2\n", "--nproc-per-node=5|--rdzv-id=j|p",
                   " rank=1 nproc=5 dynamic at=n1:29500 host=0 all=0 id=j ");
    hostfile_gives("n1\nn2\n", "--rdzv=head:5|p",
                   " nodes=2:2 rank=1 nproc=1 dynamic at=head:5 host=-1 ");
    hostfile_gives("n1\nn2\n", "--nnodes=1:2|p", " nodes=1:2 rank=1 ");
    hostfile_gives("a:1\na:2\n", "--node-rank=1|p",
                   " nodes=2:2 rank=1 nproc=2 dynamic at=a:29500 ");
    hostfile_gives("localhost\nlocalhost\n", "--node-rank=1|p",
                   " rank=1 nproc=1 dynamic at=localhost:29500 ");
    hostfile_gives("\xef\xbb\xbfn1\nn2\n", "p", " rank=1 nproc=1 dynamic at=n1:29500 ");
    hostfile_gives("n2 slots=2\n", "p", " nodes=1:1 rank=-1 nproc=2 standalone ");
}

static void test_a_host_file_that_is_wrong_gets_a_sentence(void **state)
{
    (void)state;
    static struct result r;
    hostfile_fails(NULL, "p", "--hostfile: hosts: No such file");
    hostfile_fails("# nobody\n\n", "p", "--hostfile: hosts names no host");
    hostfile_fails("n1\nn3\n", "p",
                   "none of its 2 hosts is this one, 'n2.cluster.example': write that name");
    hostfile_fails("n1\nn2.other.example\n", "p", "none of its 2 hosts");
    hostfile_fails("n1\nn2\n10.0.0.2\n", "p", "lines 2 and 3 are both this host: one is enough");
    hostfile_fails("localhost\nn1\n", "p", "line 1 is this host on every node");
    hostfile_fails("n1\nn2\n", "--node-rank=2|p",
                   "--node-rank: 2 is not below the number of hosts in --hostfile, 2");
    hostfile_fails("n1 slots=0\n", "p",
                   "line 1: \"0\" is no number of workers: write HOST, HOST slots=N or HOST:N");
    hostfile_fails("n1\n\nn2:x\n", "p", "line 3: \"x\" is no number of workers");
    hostfile_fails("n1:\n", "p", "line 1: \"\" is no number of workers");
    hostfile_fails(":4\n", "p", "line 1: \":4\" is no host");
    hostfile_fails("n1\n3\n", "p", "line 2: \"3\" is no host");
    hostfile_fails("n1;n2\n", "p", "line 1: \"n1;n2\" is no host");
    hostfile_fails("n1\n\xef\xbb\xbfn2\n", "p", "line 2: ");
    hostfile_fails("n1\nn2\n", "--master-port=5|p",
                   "--master-port (or PET_MASTER_PORT) says so too: leave out one of them; another "
                   "port than 29500: --rdzv=HOST:PORT beside --hostfile");
    hostfile_fails("n1\nn2\n", "--nnodes=2|--rdzv=n1|p", "--nnodes with --rdzv says so too");
    hostfile_fails("[fd00::1\n", "p", "has no ]");
    hostfile_fails("[fd00::1]x\n", "p", "is no host");
    hostfile_fails("n1 cores=4\n", "p", "line 1: \"cores=4\" is not known");
    hostfile_fails("n1\nn2\n", "--standalone|p", "--standalone (or PET_STANDALONE) says so too");
    hostfile_fails("n1\nn2\n", "--surroundings=slurm|p", "both say whom to listen to");
    reset_machine();
    parse(&r, NULL, "", "--hostfile=|p");
    assert_has(r.err.msg, "--hostfile is empty: give a file with one host a line");
}

/* --- lists of hosts --- */

static void test_lists_of_hosts_are_expanded(void **state)
{
    (void)state;
    /* clang-format off */
    static const struct { const char *list; const char *hosts; } lists[] = {
        {"n1", "n1"},
        {"n1,m2", "n1 m2"},
        {"n[1-3,07-09],m5", "n1 n2 n3 n07 n08 n09 m5"},
        {"n[5]", "n5"},
        {"n[08-11]", "n08 n09 n10 n11"},
        {"n[998-1001]", "n998 n999 n1000 n1001"},
        {"rack[0-1]n[1-2]", "rack0n1 rack0n2 rack1n1 rack1n2"},
        {"r[1-2]n[1,3]-ib,z", "r1n1-ib r1n3-ib r2n1-ib r2n3-ib z"},
        {"n[0-1].site.example", "n0.site.example n1.site.example"},
        {"n[0000]", "n0000"},
        {"10.0.0.[8-9]", "10.0.0.8 10.0.0.9"},
        {"c_1.site-2.example", "c_1.site-2.example"},
    };
    static const char *const wrong[] = {"", ",", "n1,", ",n1", "n[", "n]", "n[]", "n[1", "n[1-]", "n[-1]", "n[2-1]", "n[1,]", "n[,1]",
                                        "n[a]", "n[1 2]", "n[[1]]", "n[0-99999999]", "n[99999999999999999999]",
                                        "a[0-999]b[0-999]", "a[1]b[1]c[1]d[1]e[1]",
                                        "[1]", "[1-3]", "7", "10.0.0", "n1,[2]", "0x7f.1", "n 1", "n1;rm", "-n1", ".n1", "n..1", "n1/2", "fd00::1"};
    /* clang-format on */
    char host[MU_HOST_BYTES];
    uint64_t count = 0;
    for (size_t i = 0; i < MU_COUNT(lists); i++) {
        char got[512] = "";
        size_t n = 0;
        uint64_t at = 0;
        for (; surroundings_hostlist(lists[i].list, at, host, &count) == 0; at++)
            n += (size_t)snprintf(got + n, sizeof got - n, "%s%s", at > 0 ? " " : "", host);
        assert_string_equal(got, lists[i].hosts);
        assert_int_equal(count, at);
        assert_int_equal(surroundings_hostlist(lists[i].list, at, host, &count), -ERANGE);
    }
    for (size_t i = 0; i < MU_COUNT(wrong); i++)
        if (surroundings_hostlist(wrong[i], 0, host, &count) != -EINVAL)
            fail_msg("'%s' was taken for a list", wrong[i]);
}

static void test_a_host_of_a_list_fits_or_is_refused(void **state)
{
    (void)state;
    char list[MU_HOST_BYTES + 8];
    char host[MU_HOST_BYTES];
    uint64_t count = 0;
    memset(list, 'n', sizeof list);
    memcpy(list + MU_HOST_BYTES - 2, "[7]", 4);
    assert_int_equal(surroundings_hostlist(list, 0, host, &count), 0);
    assert_int_equal(strlen(host), MU_HOST_BYTES - 1);
    memcpy(list + MU_HOST_BYTES - 2, "[77]", 5);
    assert_int_equal(surroundings_hostlist(list, 0, host, &count), -EINVAL);
}

static void test_the_line_to_the_process_manager_is_used_only_where_it_is_needed(void **state)
{
    (void)state;
    static struct result r;
    reset_machine();
    parse(&r, "hydra", "MPI_LOCALNRANKS=1", "--rdzv=n1|p");
    assert_int_equal(share_calls, 0);
    parse(&r, "hydra", "MPI_LOCALNRANKS=1", "--standalone|p");
    assert_int_equal(share_calls, 0);
    parse(&r, "hydra", "MPI_LOCALNRANKS=1", "p");
    assert_int_equal(share_calls, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_captures_give_what_the_row_says),
        cmocka_unit_test(test_an_indexed_job_meets_at_its_first_pod),
        cmocka_unit_test(test_a_pod_without_a_name_for_others_says_what_to_write),
        cmocka_unit_test(test_a_jobset_counts_through_its_jobs),
        cmocka_unit_test(test_a_host_file_says_who_meets_where),
        cmocka_unit_test(test_a_host_file_that_is_wrong_gets_a_sentence),
        cmocka_unit_test(test_lists_of_hosts_are_expanded),
        cmocka_unit_test(test_a_host_of_a_list_fits_or_is_refused),
        cmocka_unit_test(test_the_line_to_the_process_manager_is_used_only_where_it_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
