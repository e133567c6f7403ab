/* Findings as a table for people, as JSON for machines, and as one sentence. Pure. */
#ifndef MUSTER_LAUNCHER_DOCTOR_REPORT_H
#define MUSTER_LAUNCHER_DOCTOR_REPORT_H

#include "base/str.h"
#include "launcher/doctor/judge.h"

/* The worst first, each with what was expected and what helps; then what is well, then what each
 * pair's link carries. Terminal control characters of other machines become '?'. */
void doc_report_table(struct mu_buf *b,
                      const struct doc_case *c,
                      const struct doc_findings *f,
                      bool coloured);
/* One object in one line: docs/doctor.schema.json. */
void doc_report_json(struct mu_buf *b, const struct doc_case *c, const struct doc_findings *f);
/* One sentence: the worst finding that keeps a node from its rendezvous, and its remedy; or that
 * nothing is wrong. */
void doc_report_brief(struct mu_buf *b, const struct doc_findings *f);
/* "2 FAIL, 1 warn", "all well" */
void doc_report_counts(struct mu_buf *b, const struct doc_findings *f);

#endif
