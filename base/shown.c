/* What a terminal shows; see shown.h. */
#include "base/shown.h"

#include <string.h>

#include "base/json.h"

size_t mu_shown_len(const char *p, size_t n)
{
    size_t len = mu_utf8_len(p, n);
    unsigned char c = len > 0 ? (unsigned char)p[0] : 0;
    bool is_c1 = len == 2 && c == 0xc2 && (unsigned char)p[1] < 0xa0;
    return c < 0x20 || c == 0x7f || is_c1 ? 0 : len;
}

void mu_clean(char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        size_t len = mu_shown_len(text + i, n - i);
        if (len == 0)
            text[i] = ' ';
        i += len == 0 ? 1 : len;
    }
}

int mu_buf_add_shown(struct mu_buf *b, struct mu_str s, const char *kept)
{
    int r = 0;
    for (size_t i = 0; i < s.n && r == 0;) {
        size_t len = mu_shown_len(s.p + i, s.n - i);
        if (len == 0 && s.p[i] != '\0' && strchr(kept, s.p[i]) != NULL)
            len = 1;
        r = len > 0 ? mu_buf_add(b, s.p + i, len)
                    : mu_buf_addf(b, "\\x%02x", (unsigned)(unsigned char)s.p[i]);
        i += len == 0 ? 1 : len;
    }
    return r;
}
