/* One file for each shell, none of which needs more than the shell itself. What may stand behind an
 * option is read off its value text: words in small letters are offered as they are; FILE, DIR and
 * HOST are looked for; for anything else there is nothing to offer. */
#include "tools/completion.h"

#include <string.h>

enum value_kind {
    VALUE_NONE, /* A switch. */
    VALUE_WORDS,
    VALUE_FILE,
    VALUE_DIR,
    VALUE_HOST,
    VALUE_OTHER
};

/* --- what the table says --- */

static bool is_literal(const char *p, size_t n)
{
    if (n == 0 || p[0] < 'a' || p[0] > 'z')
        return false;
    return strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789-") >= n;
}

/* The literal words of "N|cpu|gpu|auto", each behind a blank but the first. */
static void add_words(struct mu_buf *out, const char *value)
{
    size_t start = out->n;
    for (const char *p = value; *p != '\0';) {
        size_t n = strcspn(p, "|");
        if (is_literal(p, n)) {
            if (out->n > start)
                (void)mu_buf_adds(out, " ");
            (void)mu_buf_add(out, p, n);
        }
        p += n + (p[n] == '|');
    }
}

static bool has_words(const char *value)
{
    for (const char *p = value; *p != '\0';) {
        size_t n = strcspn(p, "|");
        if (is_literal(p, n))
            return true;
        p += n + (p[n] == '|');
    }
    return false;
}

static enum value_kind kind_of(const struct mu_option_text *o)
{
    if (o->value == NULL)
        return VALUE_NONE;
    if (has_words(o->value))
        return VALUE_WORDS;
    if (strcmp(o->value, "FILE") == 0 || strcmp(o->value, "PATH") == 0)
        return VALUE_FILE;
    if (strcmp(o->value, "DIR") == 0)
        return VALUE_DIR;
    return strncmp(o->value, "HOST", 4) == 0 ? VALUE_HOST : VALUE_OTHER;
}

/* Text between single quotes of a shell: `special` characters go behind a backslash, and a single
 * quote is `quote`. */
static void add_quoted(struct mu_buf *out, struct mu_str s, const char *special, const char *quote)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\'') {
            (void)mu_buf_adds(out, quote);
            continue;
        }
        if (strchr(special, s.p[i]) != NULL)
            (void)mu_buf_adds(out, "\\");
        (void)mu_buf_add(out, &s.p[i], 1);
    }
}

/* The first sentence, without its full stop. */
static struct mu_str first_sentence(const char *doc)
{
    const char *end = strstr(doc, ". ");
    size_t n = end != NULL ? (size_t)(end - doc) : strlen(doc);
    if (n > 0 && doc[n - 1] == '.')
        n--;
    return mu_str_of(doc, n);
}

/* "node-agent" as a part of a function's name. */
static void add_identifier(struct mu_buf *out, const char *name)
{
    for (; *name != '\0'; name++)
        (void)mu_buf_add(out, *name == '-' ? "_" : name, 1);
}

/* Every spelling of the options that want a value, with `divider` between them. */
static void add_valued(struct mu_buf *out, const struct completed *c, const char *divider)
{
    struct mu_option_text o;
    bool first = true;
    for (size_t i = 0; c->option(i, &o); i++) {
        if (o.value == NULL)
            continue;
        if (o.letter != 0)
            (void)mu_buf_addf(out, "%s-%c", first ? "" : divider, o.letter);
        (void)mu_buf_addf(out, "%s--%s", first && o.letter == 0 ? "" : divider, o.name);
        first = false;
    }
}

static void add_origin(struct mu_buf *out, const struct completed *c, const char *shell)
{
    (void)mu_buf_addf(out,
                      "# Completion of %s for %s, printed from its option table by "
                      "muster-describe.\n",
                      c->name, shell);
}

/* --- bash --- */

/* The arm of one option: what its value may be. */
static void bash_value(struct mu_buf *out, const struct mu_option_text *o)
{
    enum value_kind kind = kind_of(o);
    if (kind == VALUE_NONE || kind == VALUE_OTHER)
        return;
    (void)mu_buf_adds(out, "    ");
    if (o->letter != 0)
        (void)mu_buf_addf(out, "-%c | ", o->letter);
    (void)mu_buf_addf(out, "--%s) ", o->name);
    if (kind == VALUE_WORDS) {
        (void)mu_buf_adds(out, "mapfile -t COMPREPLY < <(compgen -W '");
        add_words(out, o->value);
        (void)mu_buf_adds(out, "' -- \"$cur\") ;;\n");
    } else if (kind == VALUE_FILE) {
        (void)mu_buf_adds(out, "compopt -o default ;;\n");
    } else if (kind == VALUE_DIR) {
        (void)mu_buf_adds(out, "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "
                               "\"$cur\") ;;\n");
    } else {
        (void)mu_buf_adds(out, "mapfile -t COMPREPLY < <(compgen -A hostname -- \"$cur\") ;;\n");
    }
}

/* Which option waits for a value (`wants`), and is the program behind us (`program`)? bash cuts
 * --name=value at the sign, unless COMP_WORDBREAKS says otherwise. */
static void bash_walk(struct mu_buf *out, const struct completed *c)
{
    (void)mu_buf_adds(out, "    local cur=${COMP_WORDS[COMP_CWORD]} glued= wants= program= word i\n"
                           "    COMPREPLY=()\n"
                           "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                           "        word=${COMP_WORDS[i]}\n"
                           "        [[ $word == = && $wants ]] && continue\n"
                           "        [[ $wants ]] && { wants=; continue; }\n"
                           "        case $word in\n"
                           "        --) program=${program:-1}; break ;;\n"
                           "        --*=*) ;;\n"
                           "        -*) case ${word//_/-} in\n"
                           "            ");
    add_valued(out, c, " | ");
    (void)mu_buf_adds(out, ") wants=${word//_/-} ;;\n"
                           "            esac ;;\n"
                           "        *) program=${program:-$word}");
    (void)mu_buf_adds(out, c->starts_program ? "; break" : "");
    (void)mu_buf_adds(out, " ;;\n"
                           "        esac\n"
                           "    done\n");
    if (c->starts_program)
        (void)mu_buf_adds(out, "    [[ $program ]] && { compopt -o default; return; }\n");
    (void)mu_buf_adds(out, "    [[ $wants && $cur == = ]] && cur=\n"
                           "    [[ ! $wants && $cur == --*=* ]] && { wants=${cur%%=*} "
                           "glued=${cur%%=*}= cur=${cur#*=}; wants=${wants//_/-}; }\n");
}

void completion_bash(struct mu_buf *out, const struct completed *c)
{
    struct mu_option_text o;
    add_origin(out, c, "bash");
    (void)mu_buf_adds(out, "_muster_");
    add_identifier(out, c->name);
    (void)mu_buf_adds(out, "()\n{\n");
    bash_walk(out, c);
    (void)mu_buf_adds(out, "    case $wants in\n");
    for (size_t i = 0; c->option(i, &o); i++)
        bash_value(out, &o);
    (void)mu_buf_adds(out, "    '')\n        [[ $cur == -* ]] && mapfile -t COMPREPLY < <(compgen "
                           "-W '");
    for (size_t i = 0; c->option(i, &o); i++)
        (void)mu_buf_addf(out, "%s--%s", i > 0 ? " " : "", o.name);
    (void)mu_buf_adds(out, "' -- \"$cur\")\n");
    if (c->starts_program)
        (void)mu_buf_adds(out, "        [[ $cur != -* ]] && compopt -o filenames &&\n"
                               "            mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"; [[ ! "
                               "$cur ]] || compgen -c -- \"$cur\")\n");
    if (c->commands != NULL)
        (void)mu_buf_addf(out,
                          "        [[ $cur != -* && ! $program ]] &&\n"
                          "            mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$cur\")\n"
                          "        [[ $cur != -* && $program == run ]] && compopt -o default\n",
                          c->commands);
    (void)mu_buf_adds(out, "        ;;\n    esac\n"
                           "    [[ ! $glued ]] || COMPREPLY=(\"${COMPREPLY[@]/#/$glued}\")\n"
                           "}\ncomplete -F _muster_");
    add_identifier(out, c->name);
    (void)mu_buf_addf(out, " %s\n", c->name);
}

/* --- zsh --- */

static void zsh_option(struct mu_buf *out, const struct mu_option_text *o)
{
    static const char special[] = "\\[]:";
    enum value_kind kind = kind_of(o);
    const char *sign = o->value != NULL ? "=" : "";
    (void)mu_buf_adds(out, " \\\n    ");
    if (o->letter != 0)
        (void)mu_buf_addf(out, "'(-%c --%s)'{-%c%s,--%s%s}'", o->letter, o->name, o->letter,
                          o->value != NULL ? "+" : "", o->name, sign);
    else
        (void)mu_buf_addf(out, "'--%s%s", o->name, sign);
    (void)mu_buf_adds(out, "[");
    add_quoted(out, first_sentence(o->doc), special, "'\\''");
    (void)mu_buf_adds(out, "]");
    if (o->value != NULL) {
        (void)mu_buf_adds(out, ":");
        add_quoted(out, mu_str_of(o->value, strlen(o->value)), special, "'\\''");
        (void)mu_buf_adds(out, ":");
    }
    switch (kind) {
    case VALUE_WORDS:
        (void)mu_buf_adds(out, "(");
        add_words(out, o->value);
        (void)mu_buf_adds(out, ")");
        break;
    case VALUE_FILE:
        (void)mu_buf_adds(out, "_files");
        break;
    case VALUE_DIR:
        (void)mu_buf_adds(out, "_files -/");
        break;
    case VALUE_HOST:
        (void)mu_buf_adds(out, "_hosts");
        break;
    case VALUE_OTHER:
        (void)mu_buf_adds(out, " ");
        break;
    case VALUE_NONE:
        break;
    }
    (void)mu_buf_adds(out, "'");
}

void completion_zsh(struct mu_buf *out, const struct completed *c)
{
    struct mu_option_text o;
    (void)mu_buf_addf(out, "#compdef %s\n", c->name);
    add_origin(out, c, "zsh");
    /* -A: what looks like an option behind the program is the program's. */
    (void)mu_buf_addf(out, "_arguments -s -S%s :", c->starts_program ? " -A '-*'" : "");
    for (size_t i = 0; c->option(i, &o); i++)
        zsh_option(out, &o);
    if (c->starts_program)
        (void)mu_buf_adds(out,
                          " \\\n    '1:program:{_alternative \"files:file:_files\" "
                          "\"commands:command:_command_names -e\"}' \\\n    '*:argument:_files'");
    if (c->commands != NULL)
        (void)mu_buf_addf(out,
                          " \\\n    '1:command:(%s)' \\\n"
                          "    '*:job or program:{[[ ${words[(r)run]} == run ]] && _files}'",
                          c->commands);
    (void)mu_buf_adds(out, "\n");
}

/* --- fish --- */

/* Has no program been named yet? */
static void fish_condition(struct mu_buf *out, const struct completed *c)
{
    (void)mu_buf_adds(out, "function __muster_");
    add_identifier(out, c->name);
    (void)mu_buf_adds(out, "_takes_flags\n"
                           "    set -l wants 0\n"
                           "    for word in (commandline -opc)[2..-1]\n"
                           "        if test $wants = 1\n"
                           "            set wants 0\n"
                           "            continue\n"
                           "        end\n"
                           "        test \"$word\" = --; and return 1\n"
                           "        switch (string replace -a _ - -- $word)\n"
                           "            case ");
    add_valued(out, c, " ");
    (void)mu_buf_adds(out, "\n"
                           "                set wants 1\n"
                           "            case '-*'\n"
                           "            case '*'\n"
                           "                return 1\n"
                           "        end\n"
                           "    end\n"
                           "    return 0\n"
                           "end\n");
}

static void
fish_option(struct mu_buf *out, const struct completed *c, const struct mu_option_text *o)
{
    (void)mu_buf_addf(out, "complete -c %s", c->name);
    if (c->starts_program) {
        (void)mu_buf_adds(out, " -n __muster_");
        add_identifier(out, c->name);
        (void)mu_buf_adds(out, "_takes_flags");
    }
    (void)mu_buf_addf(out, " -l %s", o->name);
    if (o->letter != 0)
        (void)mu_buf_addf(out, " -s %c", o->letter);
    switch (kind_of(o)) {
    case VALUE_WORDS:
        (void)mu_buf_adds(out, " -x -a '");
        add_words(out, o->value);
        (void)mu_buf_adds(out, "'");
        break;
    case VALUE_FILE:
        (void)mu_buf_adds(out, " -r -F");
        break;
    case VALUE_DIR:
        (void)mu_buf_adds(out, " -x -a '(__fish_complete_directories)'");
        break;
    case VALUE_HOST:
        (void)mu_buf_adds(out, " -x -a '(__fish_print_hostnames)'");
        break;
    case VALUE_OTHER:
        (void)mu_buf_adds(out, " -x");
        break;
    case VALUE_NONE:
        break;
    }
    (void)mu_buf_adds(out, " -d '");
    add_quoted(out, first_sentence(o->doc), "\\", "\\'");
    (void)mu_buf_adds(out, "'\n");
}

void completion_fish(struct mu_buf *out, const struct completed *c)
{
    struct mu_option_text o;
    add_origin(out, c, "fish");
    if (c->starts_program)
        fish_condition(out, c);
    else
        (void)mu_buf_addf(out, "complete -c %s -f\n", c->name);
    if (c->commands != NULL)
        (void)mu_buf_addf(out,
                          "complete -c %s -n __fish_use_subcommand -a '%s'\n"
                          "complete -c %s -n '__fish_seen_subcommand_from run' -F\n",
                          c->name, c->commands, c->name);
    for (size_t i = 0; c->option(i, &o); i++)
        fish_option(out, c, &o);
}
