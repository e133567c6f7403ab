/* Any bytes at the control port: frames are found or refused, messages are taken or refused with a
 * sentence, and what is taken goes out and in again unchanged. libFuzzer's entry point; tests/fuzz
 * also builds it with a main() that replays the corpus. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/ctl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct mu_buf buffer(void)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    return b;
}

/* What was understood is encoded, understood again, and encoded to the same bytes. */
static void check_stable(const struct ctl_msg *m)
{
    struct mu_buf first = buffer();
    struct mu_buf second = buffer();
    struct mu_buf scratch = buffer();
    struct ctl_msg again;
    struct mu_str json;
    size_t frame_bytes = 0;
    struct mu_err err = {0};
    MU_ASSERT(ctl_encode(m, &first) == 0);
    MU_ASSERT(ctl_frame(mu_str_of(first.p, first.n), &json, &frame_bytes, &err) == 1);
    MU_ASSERT(frame_bytes == first.n);
    MU_ASSERT(ctl_decode(json, &again, &scratch, &err) == 0);
    MU_ASSERT(again.type == m->type);
    MU_ASSERT(ctl_encode(&again, &second) == 0);
    MU_ASSERT(mu_str_eq(mu_str_of(first.p, first.n), mu_str_of(second.p, second.n)));
    mu_buf_fini(&first);
    mu_buf_fini(&second);
    mu_buf_fini(&scratch);
}

/* A space behind the brace takes the whole form's way instead of the plain one's: both must give
 * the same answer. */
static void check_both_ways(struct mu_str json, int result, const struct ctl_msg *m)
{
    struct mu_buf spaced = buffer();
    struct mu_buf first = buffer();
    struct mu_buf second = buffer();
    struct mu_buf scratch = buffer();
    struct ctl_msg other;
    if (json.n == 0 || json.p[0] != '{')
        return;
    MU_ASSERT(mu_buf_add(&spaced, "{ ", 2) == 0);
    MU_ASSERT(mu_buf_add(&spaced, json.p + 1, json.n - 1) == 0);
    MU_ASSERT(ctl_decode(mu_str_of(spaced.p, spaced.n), &other, &scratch, NULL) == result);
    if (result == 0) {
        MU_ASSERT(ctl_encode(m, &first) == 0);
        MU_ASSERT(ctl_encode(&other, &second) == 0);
        MU_ASSERT(mu_str_eq(mu_str_of(first.p, first.n), mu_str_of(second.p, second.n)));
    }
    mu_buf_fini(&spaced);
    mu_buf_fini(&first);
    mu_buf_fini(&second);
    mu_buf_fini(&scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_str in = mu_str_of((const char *)data, size);
    struct mu_buf scratch = buffer();
    for (;;) {
        struct mu_str json;
        size_t frame_bytes = 0;
        struct mu_err err = {0};
        struct ctl_msg m;
        int r = ctl_frame(in, &json, &frame_bytes, &err);
        MU_ASSERT(r >= 0 || err.msg[0] != '\0');
        if (r <= 0)
            break;
        err.msg[0] = '\0';
        r = ctl_decode(json, &m, &scratch, &err);
        MU_ASSERT(r == 0 || err.msg[0] != '\0');
        check_both_ways(json, r, &m);
        if (r == 0)
            check_stable(&m);
        in = mu_str_of(in.p + frame_bytes, in.n - frame_bytes);
    }
    mu_buf_fini(&scratch);
    return 0;
}
