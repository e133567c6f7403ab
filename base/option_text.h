/* What a program's option table says about one option, for those who write about all of them: the
 * shells' completions (tools/completion.c). */
#ifndef MUSTER_BASE_OPTION_TEXT_H
#define MUSTER_BASE_OPTION_TEXT_H

struct mu_option_text {
    const char *name;  /* Long name, without dashes. */
    char letter;       /* Short name, or 0. */
    const char *value; /* What stands behind it, as --help says it; NULL: nothing does. Alternatives
                        * are divided by '|', and those in small letters are meant literally. */
    const char *doc;   /* A phrase or sentences. */
};

#endif
