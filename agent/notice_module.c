/* muster-notice.so: HTTP to a metadata service, by libcurl; see notice_module.h. */
#include "agent/notice_module.h"

#include <stdio.h>
#include <string.h>

#include <curl/curl.h>

/* The service is on this very machine, as far as one can tell. */
#define CONNECT_MS 2000L
#define WHOLE_MS 4000L

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct notice_answer *a = arg;
    if (a->body_bytes + size * n > NOTICE_BODY_BYTES)
        return 0; /* libcurl ends the transfer. */
    memcpy(a->body + a->body_bytes, p, size * n);
    a->body_bytes += size * n;
    return size * n;
}

static int fetch(const struct notice_request *q, struct notice_answer *ret)
{
    char why[CURL_ERROR_SIZE] = "";
    struct curl_slist *headers = NULL;
    ret->status = 0;
    ret->body_bytes = 0;
    CURL *curl = curl_easy_init();
    if (curl == NULL) {
        (void)snprintf(ret->error, sizeof ret->error, "no memory");
        return -1;
    }
    for (int i = 0; i < NOTICE_HEADERS_MAX && q->headers[i] != NULL; i++)
        headers = curl_slist_append(headers, q->headers[i]);
    (void)curl_easy_setopt(curl, CURLOPT_URL, q->url);
    (void)curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, q->method);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, WHOLE_MS);
    (void)curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, ret);
    (void)curl_easy_setopt(curl, CURLOPT_USERAGENT, "muster/" MUSTER_VERSION);
    CURLcode code = curl_easy_perform(curl);
    if (code == CURLE_OK)
        (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &ret->status);
    else
        (void)snprintf(ret->error, sizeof ret->error, "%s",
                       why[0] != '\0' ? why : curl_easy_strerror(code));
    ret->body[ret->body_bytes] = '\0';
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return code == CURLE_OK ? 0 : -1;
}

__attribute__((visibility("default"))) extern const struct notice_module muster_notice_module;
const struct notice_module muster_notice_module = {.abi = NOTICE_ABI, .fetch = fetch};
