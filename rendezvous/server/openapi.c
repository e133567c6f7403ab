/* GET /openapi.json: the document of what is served here, in the words of OpenAPI 3.1. */
#include "rendezvous/server/internal.h"

#include <rendezvous/server/openapi_data.h> /* Made by embed.cmake. */

void openapi_serve(struct srv *s,
                   const struct srv_http_request *q,
                   struct mu_str name,
                   struct srv_http_answer *ret)
{
    (void)s;
    (void)q;
    (void)name;
    *ret =
        answer_owned(200, mu_str_of((const char *)openapi_json, sizeof openapi_json), NULL, NULL);
}
