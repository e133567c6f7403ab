#include "agent/notice_watch.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/notice_module.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/module.h"

#define MODULE "muster-notice.so"
#define EVERY_MS 5000 /* As AWS and Azure advise. */
#define TOKEN_TTL "X-aws-ec2-metadata-token-ttl-seconds: 21600"

/* What the thread works on while `busy`, and the loop else. */
struct notice_poll {
    struct notice_watch *watch;
    const struct notice_module *module;
    uv_work_t work;
    bool busy;
    bool said_trouble;
    enum notice_kind kind;
    char base[300];  /* "http://169.254.169.254", or the whole URL. */
    char token[320]; /* AWS: "X-aws-ec2-metadata-token: ...". */
    char own_name[128];
    bool asked_name;
    bool reached;
    struct notice_answer answer;
};

/* --- on the thread --- */

static bool get(struct notice_poll *p, const char *method, const char *path, const char *header)
{
    char url[600];
    (void)snprintf(url, sizeof url, "%s%s", p->base, path);
    struct notice_request q = {.method = method, .url = url, .headers = {header}};
    return p->module->fetch(&q, &p->answer) == 0;
}

static bool get_token(struct notice_poll *p)
{
    if (p->token[0] != '\0')
        return true;
    if (!get(p, "PUT", "/latest/api/token", TOKEN_TTL) || p->answer.status != 200 ||
        strcspn(p->answer.body, "\r\n") != p->answer.body_bytes || p->answer.body_bytes > 256)
        return false;
    (void)snprintf(p->token, sizeof p->token, "X-aws-ec2-metadata-token: %.256s", p->answer.body);
    return true;
}

static bool ask_aws(struct notice_poll *p)
{
    if (!get_token(p))
        return p->answer.status != 0; /* It answered, not as AWS does: that is said. */
    bool good = get(p, "GET", "/latest/meta-data/spot/instance-action", p->token);
    if (good && p->answer.status == 401)
        p->token[0] = '\0'; /* It has run out: a new one at the next time. */
    return good;
}

static bool ask_azure(struct notice_poll *p)
{
    static const char header[] = "Metadata: true";
    if (!p->asked_name &&
        get(p, "GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text",
            header)) {
        p->asked_name = true;
        if (p->answer.status == 200 && p->answer.body_bytes < sizeof p->own_name)
            (void)snprintf(p->own_name, sizeof p->own_name, "%.127s", p->answer.body);
    }
    return get(p, "GET", "/metadata/scheduledevents?api-version=2020-07-01", header);
}

static void on_thread(uv_work_t *work)
{
    struct notice_poll *p = work->data;
    p->answer.status = 0;
    switch (p->kind) {
    case NOTICE_AWS:
        p->reached = ask_aws(p);
        break;
    case NOTICE_GCP:
        p->reached =
            get(p, "GET", "/computeMetadata/v1/instance/preempted", "Metadata-Flavor: Google");
        break;
    case NOTICE_AZURE:
        p->reached = ask_azure(p);
        break;
    case NOTICE_URL:
        p->reached = get(p, "GET", "", NULL);
        break;
    }
}

/* --- on the loop --- */

static void say_trouble(struct notice_poll *p, const char *why)
{
    char text[700];
    if (p->said_trouble)
        return;
    p->said_trouble = true;
    int shown = (int)strcspn(p->base, "?"); /* Behind it a secret may stand. */
    (void)snprintf(text, sizeof text,
                   "--preemption-url: %.*s: %s; asking on every %d s, without notices until then",
                   shown, p->base, why, EVERY_MS / 1000);
    p->watch->on_trouble(p->watch->arg, text);
}

static void on_answer(uv_work_t *work, int status)
{
    struct notice_poll *p = work->data;
    struct notice_watch *w = p->watch;
    struct notice n;
    struct mu_err err = {0};
    p->busy = false;
    if (w->poll == NULL) { /* Closed meanwhile. */
        mu_mem_free(mu_mem_default(), p);
        return;
    }
    if (status < 0)
        return;
    if (!p->reached) {
        say_trouble(p, p->answer.error);
        return;
    }
    if (p->kind == NOTICE_AWS && p->answer.status == 401)
        return; /* The next time brings a token along. */
    if (notice_read(p->kind, p->answer.status, mu_str_of(p->answer.body, p->answer.body_bytes),
                    p->own_name, mu_unix_ms(), &n, &err) < 0) {
        say_trouble(p, err.msg);
        return;
    }
    p->said_trouble = false; /* It serves: another failure is news. */
    if (!n.found)
        return;
    (void)uv_timer_stop(&w->timer);
    w->on_notice(w->arg, &n);
}

static void on_timer(uv_timer_t *t)
{
    struct notice_watch *w = t->data;
    struct notice_poll *p = w->poll;
    if (!p->busy)
        p->busy = uv_queue_work(t->loop, &p->work, on_thread, on_answer) == 0;
}

static const struct notice_module *open_module(struct mu_err *err)
{
    void *lib = mu_module_open(NULL, MODULE);
    const struct notice_module *m = lib != NULL ? dlsym(lib, NOTICE_SYMBOL) : NULL;
    if (m != NULL && m->abi == NOTICE_ABI)
        return m;
    const char *why = lib == NULL ? dlerror() : NULL;
    (void)mu_err_set(err, -ENOENT, "--preemption-url needs " MODULE " of this version: %.150s",
                     why != NULL ? why : "it is of another one");
    return NULL;
}

static void fill_base(struct notice_poll *p, const char *where, const char *metadata_host)
{
    static const char *const hosts[] = {[NOTICE_AWS] = "169.254.169.254",
                                        [NOTICE_GCP] = "metadata.google.internal",
                                        [NOTICE_AZURE] = "169.254.169.254"};
    if (p->kind == NOTICE_URL)
        (void)snprintf(p->base, sizeof p->base, "%s", where);
    else
        (void)snprintf(p->base, sizeof p->base, "http://%.200s",
                       metadata_host != NULL && metadata_host[0] != '\0' ? metadata_host
                                                                         : hosts[p->kind]);
}

int notice_watch_init(struct notice_watch *w,
                      uv_loop_t *loop,
                      const char *where,
                      const char *metadata_host,
                      struct mu_err *err)
{
    w->poll = NULL;
    if (where == NULL)
        return 0;
    const struct notice_module *m = open_module(err);
    if (m == NULL)
        return err != NULL ? err->code : -ENOENT;
    struct notice_poll *p = mu_zalloc(mu_mem_default(), sizeof *p);
    if (p == NULL)
        return mu_err_set(err, -ENOMEM, "no memory");
    p->watch = w;
    p->module = m;
    p->work.data = p;
    (void)notice_kind_of(where, &p->kind); /* The command line's reader has looked. */
    fill_base(p, where, metadata_host);
    w->poll = p;
    (void)uv_timer_init(loop, &w->timer); /* Cannot fail. */
    w->timer.data = w;
    (void)uv_timer_start(&w->timer, on_timer, 0, EVERY_MS);
    return 0;
}

void notice_watch_close(struct notice_watch *w)
{
    if (w->poll == NULL)
        return;
    uv_close((uv_handle_t *)&w->timer, NULL);
    if (!w->poll->busy)
        mu_mem_free(mu_mem_default(), w->poll); /* Else when the thread is done with it. */
    w->poll = NULL;
}

bool notice_watch_is_busy(const struct notice_watch *w)
{
    return w->poll != NULL && w->poll->busy;
}
