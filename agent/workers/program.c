/* From what was typed to what is executed; see program.h. */
#include "agent/workers/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

const char *program_getenv(char *const *environment, const char *name)
{
    size_t n = strlen(name);
    for (; environment != NULL && *environment != NULL; environment++) {
        if (strncmp(*environment, name, n) == 0 && (*environment)[n] == '=')
            return *environment + n + 1;
    }
    return NULL;
}

static int executable(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || access(path, X_OK) < 0)
        return -EACCES;
    return 0;
}

/* As execvp() searches: an empty entry is the current folder, and a file that may not be executed
 * is passed over. */
static int search_path(const char *dirs, const char *name, char *ret, size_t cap)
{
    int r = -ENOENT;
    for (;;) {
        size_t n = strcspn(dirs, ":");
        int len = n == 0 ? snprintf(ret, cap, "./%s", name)
                         : snprintf(ret, cap, "%.*s/%s", (int)n, dirs, name);
        int found = (size_t)len >= cap ? -ENAMETOOLONG : executable(ret);
        if (found == 0)
            return 0;
        if (found == -EACCES)
            r = -EACCES;
        if (dirs[n] == '\0')
            return r;
        dirs += n + 1;
    }
}

static int
find_in_path(const struct plan_config *c, const char *name, char *ret, struct mu_err *err)
{
    if (strchr(name, '/') != NULL) { /* Whether it is there is execve's to say. */
        if (strlen(name) >= PATH_MAX)
            return mu_err_set(err, -ENAMETOOLONG, "the program's path is too long");
        memcpy(ret, name, strlen(name) + 1);
        return 0;
    }
    const char *dirs = program_getenv(c->environment, "PATH");
    int r = search_path(dirs != NULL ? dirs : "/bin:/usr/bin", name, ret, PATH_MAX);
    if (r == -EACCES)
        return mu_err_set(err, r, "program '%.100s' is in PATH, but may not be executed", name);
    if (r < 0)
        return mu_err_set(err, -ENOENT,
                          "program '%.100s' is not in PATH; one in this folder is called './%.60s'",
                          name, name);
    return 0;
}

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* "#!/usr/bin/env -S python3 -u" and "#! /opt/bin/python3.11": does the line name Python? `line` is
 * cut into words. */
static bool names_python(char *line)
{
    char *rest = line;
    line[strcspn(line, "\r\n")] = '\0';
    for (const char *word = strsep(&rest, " \t"); word != NULL; word = strsep(&rest, " \t")) {
        const char *name = base_name(word);
        if (word[0] == '\0' || word[0] == '-' || strchr(word, '=') != NULL ||
            strcmp(name, "env") == 0)
            continue;
        return starts_with(name, "python") || starts_with(name, "pypy");
    }
    return false;
}

/* True when this is clearly no Python script. */
static bool runs_by_itself(const char *path)
{
    char head[256];
    size_t n = strlen(path);
    if (n > 3 && strcmp(path + n - 3, ".py") == 0)
        return false;
    if (executable(path) < 0)
        return false;
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return errno == EACCES; /* Executable, and not readable: Python could not read it either. */
    ssize_t got = read(fd, head, sizeof(head) - 1);
    if (got < 2)
        return false;
    head[got] = '\0';
    if (got >= 4 && memcmp(head, "\177ELF", 4) == 0)
        return true;
    return head[0] == '#' && head[1] == '!' && !names_python(head + 2);
}

static void add(struct program *p, const char *word)
{
    MU_ASSERT(p->head_count < PROGRAM_HEAD_MAX);
    p->head[p->head_count++] = word;
}

/* What stands in for the script: runs it as __main__, and puts an exception into the error file. */
static const char run_path_code[] =
    "import os, runpy, sys\n"
    "sys.argv = sys.argv[1:]\n"
    "try:\n"
    "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
    "except Exception as e:\n"
    "    import json, time, traceback\n"
    "    path = os.environ.get('TORCHELASTIC_ERROR_FILE')\n"
    "    if path and not os.path.exists(path):\n"
    "        text = {'message': '%s: %s' % (type(e).__name__, e), 'extraInfo': {\n"
    "            'py_callstack': traceback.format_exc(), 'timestamp': str(int(time.time()))}}\n"
    "        try:\n"
    "            with open(path, 'w') as f:\n"
    "                json.dump({'message': text}, f)\n"
    "        except OSError:\n"
    "            pass\n"
    "    raise\n";

/* Installed into a virtual environment by pip, we stand beside its Python, which is then meant also
 * where the environment is not activated: as torchrun's first line names the Python it came with.
 */
static bool python_of_our_environment(char *ret, size_t cap)
{
    char mark[PATH_MAX];
    ssize_t got = readlink("/proc/self/exe", ret, cap - 1);
    if (got <= 0)
        return false;
    ret[got] = '\0';
    char *slash = strrchr(ret, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    int n = snprintf(mark, sizeof(mark), "%s/../pyvenv.cfg", ret);
    if (n < 0 || (size_t)n >= sizeof(mark) || access(mark, F_OK) < 0)
        return false;
    size_t left = cap - (size_t)(slash - ret);
    n = snprintf(slash, left, "/python3");
    return n > 0 && (size_t)n < left && executable(ret) == 0;
}

static int by_python(const struct plan_config *c, struct program *p, struct mu_err *err)
{
    const char *python = c->python;
    if (python == NULL)
        python = program_getenv(c->environment, "PYTHON_EXEC");
    bool chosen = python != NULL && python[0] != '\0';
    if (chosen || !python_of_our_environment(p->path, sizeof(p->path))) {
        int r = find_in_path(c, chosen ? python : "python3", p->path, err);
        if (r < 0)
            return mu_err_wrap(err, "Python interpreter");
    }
    add(p, p->path);
    add(p, "-u");
    if (c->kind == PLAN_MODULE)
        add(p, "-m");
    if (c->kind == PLAN_RUN_PATH) {
        add(p, "-c");
        add(p, run_path_code);
    }
    add(p, c->program);
    p->script_last = true;
    return 0;
}

/* A script with a #! line for another interpreter, which the missing execute bit hands to Python.
 */
static void warn_of_missing_bit(const char *path, char *ret, size_t cap)
{
    struct stat st;
    char head[256];
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || (st.st_mode & 0111) != 0)
        return;
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    ssize_t got = fd < 0 ? -1 : read(fd, head, sizeof(head) - 1);
    if (got < 3 || head[0] != '#' || head[1] != '!')
        return;
    head[got] = '\0';
    char line[48];
    const char *word = head + 2 + strspn(head + 2, " \t");
    (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(word, "\r\n"), word);
    if (names_python(head + 2))
        return;
    (void)snprintf(ret, cap,
                   "'%.60s' begins with #!%.40s but may not be executed, and so it is given to "
                   "Python: chmod +x it to have it run by %.40s",
                   path, line, line);
}

/* A name without a folder that is no file here, but a program in PATH. */
static bool is_in_path(const struct plan_config *c)
{
    char found[PATH_MAX];
    struct stat st;
    const char *dirs = program_getenv(c->environment, "PATH");
    return strchr(c->program, '/') == NULL && stat(c->program, &st) < 0 && errno == ENOENT &&
           search_path(dirs != NULL ? dirs : "/bin:/usr/bin", c->program, found, PATH_MAX) == 0 &&
           runs_by_itself(found);
}

int program_resolve(const struct plan_config *c, struct program *ret, struct mu_err *err)
{
    *ret = (struct program){0};
    bool searched = c->kind == PLAN_PLAIN || (c->kind == PLAN_AUTO && is_in_path(c));
    bool plain = searched || (c->kind == PLAN_AUTO && runs_by_itself(c->program));
    if (!plain) {
        if (c->kind == PLAN_AUTO)
            warn_of_missing_bit(c->program, ret->warning, sizeof(ret->warning));
        return by_python(c, ret, err);
    }
    add(ret, c->program);
    if (searched)
        return find_in_path(c, c->program, ret->path, err);
    if (strlen(c->program) >= sizeof(ret->path))
        return mu_err_set(err, -ENAMETOOLONG, "the program's path is too long");
    memcpy(ret->path, c->program,
           strlen(c->program) + 1); /* As typed: no search for what lies here. */
    return 0;
}
