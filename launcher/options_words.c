#include "launcher/options_words.h"

#include <errno.h>
#include <string.h>

#include "base/words.h"

/* The words of each command: the first one, and how many may and must follow it. */
static const struct form {
    enum cli_verb verb;
    const char *word;
    const char *argument;
    uint32_t min;
    uint32_t max;
    const char *doc;
} forms[] = {
    {CLI_TOKEN, "new", " [FILE]", 0, 1,
     "makes a token, in ~/.config/muster/token where no FILE is named"},
    {CLI_STORE, "get", " KEY", 1, 1,
     "a key's value: its bytes, or on a terminal what can be shown"},
    {CLI_STORE, "set", " KEY VALUE", 2, 2, "gives a key a value; VALUE -: standard input's bytes"},
    {CLI_STORE, "keys", " [PREFIX]", 0, 1, "the keys, and how many bytes each value has"},
    {CLI_STORE, "del", " KEY", 1, 1, "removes a key"},
};

static const struct form *find(const struct cli_options *o)
{
    for (size_t i = 0; i < MU_COUNT(forms) && o->word_count > 0; i++)
        if (forms[i].verb == o->verb && strcmp(forms[i].word, o->words[0]) == 0)
            return &forms[i];
    return NULL;
}

static const char *all_of(enum cli_verb verb)
{
    return verb == CLI_STORE ? "muster store get, set, keys or del" : "muster token new [FILE]";
}

int cli_take_word(struct cli_options *o, const char *word, struct mu_err *err)
{
    char shown[64];
    if (o->word_count < CLI_WORDS_MAX) {
        o->words[o->word_count++] = word;
        return 0;
    }
    return mu_err_set(err, -EINVAL, "muster %s: %s is one too many: %s", cli_verb_name(o->verb),
                      mu_quote(shown, sizeof shown, mu_str_of(word, strlen(word))),
                      all_of(o->verb));
}

int cli_check_words(const struct cli_options *o, struct mu_err *err)
{
    const struct form *f = find(o);
    char shown[64];
    if (!cli_takes_words(o->verb))
        return 0;
    if (o->word_count == 0)
        return mu_err_set(err, -EINVAL, "muster %s needs to know what: %s", cli_verb_name(o->verb),
                          all_of(o->verb));
    if (f == NULL)
        return mu_err_set(
            err, -EINVAL, "muster %s does not know %s: %s", cli_verb_name(o->verb),
            mu_quote(shown, sizeof shown, mu_str_of(o->words[0], strlen(o->words[0]))),
            all_of(o->verb));
    uint32_t n = o->word_count - 1;
    if (n < f->min || n > f->max)
        return mu_err_set(err, -EINVAL, "muster %s %s takes%s", cli_verb_name(o->verb), f->word,
                          f->argument);
    if (o->watch)
        return mu_err_set(err, -EINVAL, "--watch does not go with muster %s",
                          cli_verb_name(o->verb));
    if (o->verb == CLI_STORE && n > 0 && f->min > 0 && o->words[1][0] == '\0')
        return mu_err_set(err, -EINVAL, "muster store %s: the key is empty", f->word);
    return 0;
}

void cli_help_words(struct mu_buf *b, enum cli_verb verb)
{
    if (!cli_takes_words(verb))
        return;
    (void)mu_buf_adds(b, "\n");
    for (size_t i = 0; i < MU_COUNT(forms); i++)
        if (forms[i].verb == verb)
            (void)mu_buf_addf(b, "  %s%-*s %s\n", forms[i].word, (int)(26 - strlen(forms[i].word)),
                              forms[i].argument, forms[i].doc);
    (void)mu_buf_adds(b, verb == CLI_STORE
                             ? "\nExamples:\n"
                               "  muster store keys -r n1                what the store holds\n"
                               "  muster store get lr -r n1              one value\n"
                               "  muster store set lr 0.01 -r n1         change it\n"
                               "  muster store set blob - <blob.bin      any bytes, up to 1 MiB\n"
                             : "\nExamples:\n"
                               "  muster token new                       for this user\n"
                               "  muster token new /etc/muster/token     for this machine\n");
}
