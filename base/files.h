/* The process's table of descriptors. Shell. */
#ifndef MUSTER_BASE_FILES_H
#define MUSTER_BASE_FILES_H

#include <stdint.h>

/* Make room for `count` descriptors now, while one thread has the table. Linux makes a table that
 * several threads share larger only after a grace period of RCU (expand_fdtable() in fs/file.c): 5
 * ms and more each time that it doubles. Nothing happens where the limit is lower. */
void mu_files_make_room(uint64_t count);

#endif
