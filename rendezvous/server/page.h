/* The page for people, part of muster-http.so: index.html, page.css and page.js of the folder
 * page/, which the build makes arrays of. The same bytes for everybody: what it shows, the browser
 * asks for itself, as GET /v1/status, /v1/events and /v1/jobs/{id}/incidents. */
#ifndef MUSTER_RENDEZVOUS_SERVER_PAGE_H
#define MUSTER_RENDEZVOUS_SERVER_PAGE_H

#include "rendezvous/server/http_module.h"

/* Always fills `ret`: the file at q->path, or 304 where the browser has it already. */
void page_respond(const struct srv_http_request *q, struct srv_http_answer *ret);

#endif
