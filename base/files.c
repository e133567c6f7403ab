#include "base/files.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

void mu_files_make_room(uint64_t count)
{
    if (count == 0 || count > INT_MAX)
        return;
    int any = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = any >= 0 ? fcntl(any, F_DUPFD_CLOEXEC, (int)count - 1) : -1;
    if (fd >= 0)
        (void)close(fd);
    if (any >= 0)
        (void)close(any);
}
