/* How long GET /status takes while others are busy: one request every --every-ms on its own
 * connection, until --for-ms have passed; one JSON object with the times of all. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/bench.h"

enum option {
    OPT_HOST,
    OPT_PORT,
    OPT_FOR,
    OPT_EVERY,
    OPT_COUNT
};

static struct bench_option options[OPT_COUNT] = {
    [OPT_HOST] = {"--host", "127.0.0.1", "the server's address"},
    [OPT_PORT] = {"--port", "29500", "its port"},
    [OPT_FOR] = {"--for-ms", "1000", "how long to go on"},
    [OPT_EVERY] = {"--every-ms", "5", "pause between two requests"},
};

/* One request to its last byte; returns the answer's bytes. */
static size_t get_status(uint16_t port)
{
    static const char request[] = "GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    static char answer[1 << 20];
    size_t sum = 0;
    ssize_t n = 0;
    int fd = bench_connect(options[OPT_HOST].value, port, NULL);
    bench_write(fd, request, sizeof request - 1);
    while ((n = read(fd, answer, sizeof answer)) > 0) {
        if (sum == 0 && (n < 12 || memcmp(answer + 9, "200", 3) != 0))
            bench_fail("status is not 200: %.*s", n < 64 ? (int)n : 64, answer);
        sum += (size_t)n;
    }
    if (n < 0)
        bench_fail("read: %s", strerror(errno));
    (void)close(fd);
    return sum;
}

int main(int argc, char **argv)
{
    bench_options(argc, argv, options, OPT_COUNT);
    uint16_t port = (uint16_t)bench_number(&options[OPT_PORT], 1, 65535);
    int every_ms = (int)bench_number(&options[OPT_EVERY], 0, 60000);
    int64_t end_ns = mu_now_ns() + bench_number(&options[OPT_FOR], 1, 600000) * MU_NS_PER_MS;
    size_t bytes_max = 0;
    const char *comma = "";
    (void)printf("{\"latency_ns\":[");
    while (mu_now_ns() < end_ns) {
        int64_t begun_ns = mu_now_ns();
        size_t bytes = get_status(port);
        (void)printf("%s%lld", comma, (long long)(mu_now_ns() - begun_ns));
        comma = ",";
        bytes_max = bytes > bytes_max ? bytes : bytes_max;
        (void)poll(NULL, 0, every_ms); /* The pace of the measurement. */
    }
    (void)printf("],\"bytes_max\":%zu}\n", bytes_max);
    return 0;
}
