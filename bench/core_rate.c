/* How fast each CPU adds and multiplies at this moment: one number a line, Gflop/s, in the order of
 * their numbers.
 *
 * core_rate MILLISECONDS
 *
 * On a shared machine a CPU is often one of two threads of a core whose other one belongs to
 * somebody else, and runs at half its speed while that one works. All CPUs are measured at once,
 * for as long as asked, with sums that stay in registers; so two numbers that differ, or that fall
 * from one time to the next, say that the machine was not this program's alone. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/parse.h"
#include "bench/bench.h"

#define CPUS_MAX 64
#define SUMS 10 /* As many as hide the latency, and fit into 16 registers. */
#define LANES 4
#define TURNS 20000

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));

struct probe {
    pthread_t thread;
    int cpu;
    int64_t ns;
    double rate;
};

static double measure(int64_t ns)
{
    const vec keep = {0.999F, 0.999F, 0.999F, 0.999F};
    vec sum[SUMS];
    int64_t began = mu_now_ns(), now = began;
    double flops = 0;
#pragma GCC unroll 10
    for (size_t i = 0; i < SUMS; i++)
        sum[i] = keep * (float)(i + 1);
    for (; now - began < ns; now = mu_now_ns()) {
        for (size_t k = 0; k < TURNS; k++)
#pragma GCC unroll 10
            for (size_t i = 0; i < SUMS; i++)
                sum[i] = sum[i] * keep + keep;
#pragma GCC unroll 10
        for (size_t i = 0; i < SUMS; i++)
            __asm__ volatile("" : "+x"(sum[i])); /* They are wanted. */
        flops += 2.0 * TURNS * SUMS * LANES;
    }
    return flops / (double)(now - began);
}

static void *run(void *arg)
{
    struct probe *p = arg;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)p->cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0)
        p->rate = measure(p->ns);
    return NULL;
}

int main(int argc, char *argv[])
{
    static struct probe probes[CPUS_MAX];
    int64_t ms = 0;
    cpu_set_t set;
    size_t count = 0;
    struct mu_err err = {0};
    if (argc != 2 || mu_parse_i64(argv[1], 1, 10000, "MILLISECONDS", &ms, &err) < 0)
        bench_fail("usage: core_rate MILLISECONDS");
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        bench_fail("which CPUs it may use is not known");
    for (int cpu = 0; cpu < CPU_SETSIZE && count < CPUS_MAX; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &set))
            continue;
        struct probe *p = &probes[count++];
        *p = (struct probe){.cpu = cpu, .ns = ms * MU_NS_PER_MS};
        if (pthread_create(&p->thread, NULL, run, p) != 0)
            bench_fail("no thread for CPU %d", cpu);
    }
    for (size_t i = 0; i < count; i++) {
        (void)pthread_join(probes[i].thread, NULL);
        printf("%.2f\n", probes[i].rate);
    }
    return 0;
}
