#include "launcher/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/module.h"
#include "base/str.h"

int cli_doctor(char *const *argv)
{
    struct mu_buf path;
    mu_buf_init(&path, mu_mem_default());
    mu_module_path("muster-doctor", &path);
    if (path.n > 0)
        (void)execv(mu_buf_cstr(&path), argv);
    (void)fprintf(stderr,
                  "muster: doctor is another program, muster-doctor, which %s: install "
                  "muster's package anew\n",
                  path.n > 0 ? strerror(errno) : "is not here");
    mu_buf_fini(&path);
    return 1;
}
