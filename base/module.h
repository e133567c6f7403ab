/* Modules that are opened on demand: a library that costs time and memory at start is paid for only
 * where it is used. */
#ifndef MUSTER_BASE_MODULE_H
#define MUSTER_BASE_MODULE_H

/* given: a path, or NULL to find `file` beside the program, as installed or as built. Returns what
 * dlopen() does; NULL: dlerror() says why. */
void *mu_module_open(const char *given, const char *file);

#endif
