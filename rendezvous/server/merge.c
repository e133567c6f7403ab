#include "rendezvous/server/merge.h"

#include <string.h>

#include "base/check.h"

void merge_init(struct merge_queue *q, const struct mu_mem *mem)
{
    mu_buf_init(&q->buf, mem);
    q->at = 0;
}

void merge_fini(struct merge_queue *q)
{
    mu_buf_fini(&q->buf);
    q->at = 0;
}

size_t merge_bytes(const struct merge_queue *q)
{
    return q->buf.n - q->at;
}

/* Each line: the struct, then its text with a NUL. */
int merge_add(struct merge_queue *q, const struct merge_line *line)
{
    int r = mu_buf_reserve(&q->buf, sizeof *line + line->text_bytes + 1);
    if (r < 0)
        return r;
    (void)mu_buf_add(&q->buf, line, sizeof *line);
    (void)mu_buf_add(&q->buf, line->text, line->text_bytes);
    (void)mu_buf_add(&q->buf, "", 1);
    return 0;
}

bool merge_peek(const struct merge_queue *q, struct merge_line *ret)
{
    if (q->at == q->buf.n)
        return false;
    memcpy(ret, q->buf.p + q->at, sizeof *ret);
    ret->text = q->buf.p + q->at + sizeof *ret;
    return true;
}

void merge_drop(struct merge_queue *q)
{
    struct merge_line line;
    MU_ASSERT(q->at < q->buf.n);
    memcpy(&line, q->buf.p + q->at, sizeof line);
    q->at += sizeof line + line.text_bytes + 1;
    if (q->at == q->buf.n) {
        merge_fini(q);
    } else if (q->at > q->buf.n / 2) { /* Else every line would move all that are behind it. */
        mu_buf_consume(&q->buf, q->at);
        q->at = 0;
    }
}
