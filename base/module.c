/* Finds the modules that are opened on demand: beside the program, as installed or as built. */
#include "base/module.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

#ifndef MUSTER_MODULE_DIR
#error "MUSTER_MODULE_DIR: where the modules are, seen from the program's folder"
#endif

/* "<the program's folder>/<sub>/<file>" */
static void *open_beside_program(const char *sub, const char *file)
{
    char exe[1024];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return NULL;
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash == NULL)
        return NULL;
    *slash = '\0';
    struct mu_buf path;
    mu_buf_init(&path, mu_mem_default());
    (void)mu_buf_addf(&path, "%s/%s/%s", exe, sub, file);
    void *lib = path.oom ? NULL : dlopen(mu_buf_cstr(&path), RTLD_NOW | RTLD_LOCAL);
    mu_buf_fini(&path);
    return lib;
}

void *mu_module_open(const char *given, const char *file)
{
    if (given != NULL)
        return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    void *lib = open_beside_program(MUSTER_MODULE_DIR, file);
    return lib != NULL ? lib : open_beside_program("../lib/muster", file); /* The build tree. */
}
