/* The table of metrics as it is asked for by the page and by docs/metrics.md. */
#include "rendezvous/server/metrics.h"

#include <string.h>

#define GAUGE "gauge"
#define COUNTER "counter"
#define HISTOGRAM "histogram"
#define X(NAME, name, type, labels, help) [SRV_METRIC_##NAME] = {name, type, labels, help},
const struct srv_metric_row srv_metric_rows[SRV_METRIC_COUNT] = {SRV_METRICS(X)};
#undef X

const int64_t srv_bucket_ms[SRV_BUCKET_COUNT] = {5,    10,   25,   50,    100,   250,   500,
                                                 1000, 2500, 5000, 10000, 30000, 60000, 300000};

/* "path,code": each in quotes of its own. */
static void add_labels(struct mu_buf *out, const char *labels)
{
    while (*labels != '\0') {
        size_t n = strcspn(labels, ",");
        (void)mu_buf_addf(out, "`%.*s`", (int)n, labels);
        labels += n;
        if (*labels == ',') {
            (void)mu_buf_adds(out, ", ");
            labels++;
        }
    }
}

void srv_metrics_describe(struct mu_buf *out)
{
    (void)mu_buf_adds(out, "| metric | type | labels | what it says |\n|---|---|---|---|\n");
    for (size_t i = 0; i < SRV_METRIC_COUNT; i++) {
        const struct srv_metric_row *r = &srv_metric_rows[i];
        (void)mu_buf_addf(out, "| `%s` | %s | ", r->name, r->type);
        add_labels(out, r->labels);
        (void)mu_buf_addf(out, " | %s |\n", r->help);
    }
}
