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
static bool path_beside_program(const char *sub, const char *file, struct mu_buf *ret)
{
    char exe[1024];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return false;
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return mu_buf_addf(ret, "%s/%s/%s", exe, sub, file) == 0;
}

static void *open_beside_program(const char *sub, const char *file)
{
    struct mu_buf path;
    mu_buf_init(&path, mu_mem_default());
    void *lib = !path_beside_program(sub, file, &path)
                    ? NULL
                    : dlopen(mu_buf_cstr(&path), RTLD_NOW | RTLD_LOCAL);
    mu_buf_fini(&path);
    return lib;
}

void mu_module_path(const char *file, struct mu_buf *ret)
{
    static const char *const subs[] = {MUSTER_MODULE_DIR, "../lib/muster"}; /* The build tree. */
    for (size_t i = 0; i < MU_COUNT(subs); i++) {
        mu_buf_reset(ret);
        if (path_beside_program(subs[i], file, ret) && access(mu_buf_cstr(ret), X_OK) == 0)
            return;
    }
    mu_buf_reset(ret);
}

void *mu_module_open(const char *given, const char *file)
{
    if (given != NULL)
        return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    void *lib = open_beside_program(MUSTER_MODULE_DIR, file);
    return lib != NULL ? lib : open_beside_program("../lib/muster", file); /* The build tree. */
}
