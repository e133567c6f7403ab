/* GPUs as their driver's files tell, and the versions of the libraries that are there. Nothing is
 * started on a GPU. */
#include "launcher/doctor/local.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

#define GPUS "/proc/driver/nvidia/gpus"

/* "Model: \t\t NVIDIA H200" */
static void read_model(const char *gpu, char *ret, size_t cap)
{
    char path[512];
    char line[256];
    (void)snprintf(path, sizeof path, GPUS "/%.200s/information", gpu);
    ret[0] = '\0';
    if (local_read_line(path, line, sizeof line) < 0 || strncmp(line, "Model:", 6) != 0)
        return;
    (void)snprintf(ret, cap, "%s", line + 6 + strspn(line + 6, " \t"));
}

static void add_models(cJSON *o)
{
    char models[120] = "";
    double count = 0;
    MU_CLEANUP(mu_closedirp) DIR *d = opendir(GPUS);
    if (d == NULL && errno != ENOENT) {
        fact_unknown(o, "gpus", "%s: %s", GPUS, strerror(errno));
        return;
    }
    const struct dirent *e = NULL;
    while (d != NULL && (e = readdir(d)) != NULL) {
        char model[100];
        if (e->d_name[0] == '.')
            continue;
        count++;
        read_model(e->d_name, model, sizeof model);
        if (models[0] == '\0')
            (void)snprintf(models, sizeof models, "%s", model);
        else if (model[0] != '\0' && strcmp(models, model) != 0)
            (void)snprintf(models, sizeof models, "several models");
    }
    fact_num(o, "gpus", count);
    if (models[0] != '\0')
        fact_text(o, "gpu_models", models);
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ..." */
static void add_driver(cJSON *o)
{
    char line[256];
    if (local_read_line("/sys/module/nvidia/version", line, sizeof line) == 0)
        fact_text(o, "driver", line);
}

typedef int version_fn(int *ret);

/* POSIX lets a pointer to an object become one to a function; ISO C does not. */
static version_fn *function_of(void *lib, const char *name)
{
    version_fn *fn = NULL;
    void *p = lib != NULL ? dlsym(lib, name) : NULL;
    memcpy(&fn, &p, sizeof fn);
    return fn;
}

static void add_library(cJSON *o, const char *key, const char *file, const char *name, bool is_nccl)
{
    int v = 0;
    char text[32];
    void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    version_fn *fn = function_of(lib, name);
    if (fn != NULL && fn(&v) == 0) {
        if (is_nccl)
            (void)snprintf(text, sizeof text, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
        else
            (void)snprintf(text, sizeof text, "%d.%d", v / 1000, v / 10 % 100);
        fact_text(o, key, text);
    }
    if (lib != NULL)
        (void)dlclose(lib);
}

void local_add_gpus(cJSON *o)
{
    add_models(o);
    add_driver(o);
    add_library(o, "cuda", "libcuda.so.1", "cuDriverGetVersion", false);
    add_library(o, "nccl", "libnccl.so.2", "ncclGetVersion", true);
}
