/* Modules that are opened on demand: a library that costs time and memory at start is paid for only
 * where it is used. */
#ifndef MUSTER_BASE_MODULE_H
#define MUSTER_BASE_MODULE_H

struct mu_buf;
/* "<the program's folder>/<where modules are>/file", as installed or as built, where it may be
 * executed; else an empty text. */
void mu_module_path(const char *file, struct mu_buf *ret);

/* given: a path, or NULL to find `file` beside the program, as installed or as built. Returns what
 * dlopen() does; NULL: dlerror() says why. */
void *mu_module_open(const char *given, const char *file);

#endif
