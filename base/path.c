/* Paths; see path.h. */
#include "base/path.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

int mu_path_here(char *ret, size_t cap, const char *remedy, struct mu_err *err)
{
    if (getcwd(ret, cap) != NULL)
        return 0;
    return mu_err_set(err, -errno, "this folder has no name (%s): %s", strerror(errno), remedy);
}

int mu_path_absolute(const char *path, char *ret, size_t cap, struct mu_err *err)
{
    char here[PATH_MAX] = "";
    char shown[120];
    bool is_relative = path[0] != '/';
    int r = is_relative ? mu_path_here(here, sizeof here, "give an absolute path", err) : 0;
    if (r < 0)
        return r;
    const char *folder = strcmp(here, "/") == 0 ? "" : here;
    if (strlen(folder) + is_relative + strlen(path) >= cap)
        return mu_err_set(err, -ENAMETOOLONG, "%s: longer than %zu bytes as an absolute path",
                          mu_quote(shown, sizeof shown, mu_str_of(path, strlen(path))), cap - 1);
    (void)snprintf(ret, cap, "%s%s%s", folder, is_relative ? "/" : "", path);
    return 0;
}
