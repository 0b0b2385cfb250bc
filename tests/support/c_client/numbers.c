/* Gives every function of the header that takes a duration, a size or a count its extreme values, and writes a line for each wrong outcome:
 * tests/integration/test_c_numbers.py, which serves "echo". */
#include <sbus.h>

#include <limits.h>

static struct sbus bus, caller, service;
static char room[SBUS_PACKET_BYTES > SBUS_BATCH_BYTES ? SBUS_PACKET_BYTES : SBUS_BATCH_BYTES];

/* Check the outcome of a function: 0 or errno, of which two are right. */
static void check(const char *what, long long value, int status, int right, int also_right) {
    int outcome = status < 0 ? errno : 0;
    if (outcome != right && outcome != also_right)
        printf("%s of %lld: %s\n", what, value, strerror(outcome));
}

static void ping(struct sbus *of) {
    struct sbus_packet packet;
    if (sbus_control(of, "!/bus/ping", "x", 1) < 0)
        puts("no ping");
    while (sbus_next(of, &packet, -1) > 0 && !sbus_equal(packet.key, "!/bus/ping"))
        continue;
}

static void check_calls(int timeout) {
    int right = timeout > 0 ? 0 : EINVAL;
    struct sbus_reply reply;
    check("sbus_call", timeout, sbus_call(&bus, "echo", "x", 1, timeout, &reply), right, right);
    check("sbus_call_traced", timeout, sbus_call_traced(&bus, "echo", "x", 1, NULL, timeout, &reply), right, right);
    check("sbus_call_start", timeout, sbus_call_start(&bus, "echo", "x", 1, NULL, timeout), right, right);
    sbus_call_cancel(&bus);
    check("sbus_stream_start", timeout, sbus_stream_start(&bus, "echo", "x", 1, NULL, 1, timeout), right, right);
    sbus_call_cancel(&bus);
}

static void check_waits(int timeout) {
    int late = timeout == 0 ? ETIMEDOUT : 0;
    struct sbus_reply reply;
    struct sbus_packet packet;
    sbus_call_start(&bus, "echo", "x", 1, NULL, INT_MAX);
    check("sbus_call_wait", timeout, sbus_call_wait(&bus, timeout, &reply), 0, late);
    sbus_call_cancel(&bus);
    sbus_stream_start(&bus, "echo", "x", 1, NULL, 1024, INT_MAX);
    check("sbus_stream_next", timeout, sbus_stream_next(&bus, timeout, &reply), 0, late);
    sbus_call_cancel(&bus);
    ping(&bus);
    if (sbus_timeout(&bus, timeout) != timeout)
        printf("sbus_timeout of %d\n", timeout);
    sbus_control(&bus, "!/bus/ping", "y", 1);
    check("sbus_next", timeout, sbus_next(&bus, &packet, timeout), 0, 0);
}

static void check_blob_waits(int timeout) {
    int late = timeout == 0 ? ETIMEDOUT : 0, status, fd = sbus_seal_("x", 1);
    struct sbus_blob blob;
    char ticket[SBUS_TICKET_BYTES];
    check("sbus_blob_put_fd", timeout, sbus_blob_put_fd(&bus, fd, NULL, timeout, ticket), 0, late);
    check("sbus_blob_put", timeout, sbus_blob_put(&bus, "x", 1, NULL, timeout, ticket), 0, late);
    check("sbus_blob_publish", timeout, sbus_blob_publish(&bus, "k", "x", 1, NULL, timeout, NULL), 0, late);
    close(fd);
    if (sbus_blob_put(&bus, "x", 1, NULL, -1, ticket) < 0)
        return;
    status = sbus_blob_get(&bus, ticket, timeout, &blob);
    check("sbus_blob_get", timeout, status, 0, late);
    sbus_blob_release(&blob);
    check("sbus_blob_drop", timeout, sbus_blob_drop(&bus, ticket, timeout), 0, timeout == 0 ? ETIMEDOUT : ENOENT);
}

/* Have a request for the service, of a stream if *window* is not 0. */
static void have_request(struct sbus_request *request, unsigned window) {
    struct sbus_packet packet;
    int status = window ? sbus_stream_start(&caller, "own", "x", 1, NULL, window, INT_MAX)
                        : sbus_call_start(&caller, "own", "x", 1, NULL, INT_MAX);
    if (status < 0)
        puts(sbus_error(&caller));
    while (status == 0 && sbus_next(&service, &packet, -1) > 0 && sbus_take_request(&service, &packet, "own", request) != 1)
        continue;
}

/* *right* is the error of packets. */
static void check_sizes(const void *data, size_t size, int right, int of_batch, int of_blob) {
    struct sbus_batch batch;
    struct sbus_request request;
    struct sbus_reply reply;
    long long value = (long long)size;
    check("sbus_publish", value, sbus_publish(&bus, "k", data, size), right, right);
    check("sbus_publish_receipt", value, sbus_publish_receipt(&bus, "k", data, size, "t"), right, right);
    sbus_gather(&bus, true);
    check("sbus_publish, gathered", value, sbus_publish(&bus, "k", data, size), right, right);
    sbus_publish(&bus, "k", "x", 1);
    check("sbus_publish, gathered", value, sbus_publish(&bus, "k", data, size), right, right);
    sbus_gather(&bus, false);
    sbus_batch_start(&batch, room, SIZE_MAX);
    check("sbus_batch_publish", value, sbus_batch_publish(&batch, "k", data, size), of_batch, of_batch);
    if (data)
        check("sbus_control", value, sbus_control(&bus, "!/bus/ping", data, size), right, right);
    check("sbus_call", value, sbus_call(&bus, "echo", data, size, INT_MAX, &reply), right, right);
    check("sbus_call_traced", value, sbus_call_traced(&bus, "echo", data, size, NULL, INT_MAX, &reply), right, right);
    check("sbus_call_start", value, sbus_call_start(&bus, "echo", data, size, NULL, INT_MAX), right, right);
    sbus_call_cancel(&bus);
    check("sbus_stream_start", value, sbus_stream_start(&bus, "echo", data, size, NULL, 1, INT_MAX), right, right);
    sbus_call_cancel(&bus);
    have_request(&request, 0);
    check("sbus_respond", value, sbus_respond(&service, &request, data, size), right, right);
    if (right)
        sbus_respond_error(&service, &request, "it failed");
    sbus_call_cancel(&caller);
    have_request(&request, 1);
    check("sbus_respond_part", value, sbus_respond_part(&service, &request, data, size), right, right);
    sbus_respond_end(&service, &request);
    sbus_call_cancel(&caller);
    check("sbus_blob_put", value, sbus_blob_put(&bus, data, size, NULL, -1, (char[SBUS_TICKET_BYTES]){0}), of_blob, of_blob);
    check("sbus_blob_publish", value, sbus_blob_publish(&bus, "k", data, size, NULL, -1, NULL), of_blob, of_blob);
}

static void check_terms(int expire_ms, unsigned uses, int right) {
    struct sbus_blob_terms terms = {NULL, NULL, expire_ms, uses, false};
    char ticket[SBUS_TICKET_BYTES];
    check(uses ? "uses" : "expire_ms", uses ? (long long)uses : expire_ms, sbus_blob_put(&bus, "x", 1, &terms, -1, ticket), right, right);
}

int main(void) {
    static const int timeouts[] = {INT_MIN, -2, -1, 0, INT_MAX - 1, INT_MAX};
    static const size_t huge[] = {SBUS_PACKET_BYTES, (size_t)1 << 62, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX - 3, SIZE_MAX};
    static const unsigned windows[] = {0, 1025, UINT_MAX};
    struct sbus_batch batch;
    struct sbus_packet packet;
    size_t i;
    sbus_connect(&bus, NULL, 0);
    sbus_connect(&caller, NULL, 0);
    sbus_connect(&service, NULL, 0);
    sbus_serve(&service, "own");
    ping(&service);
    ping(&service);
    check("sbus_next", 0, sbus_next(&bus, &packet, 0), 0, 0);
    for (i = 0; i < sizeof timeouts / sizeof *timeouts; i++) {
        check_calls(timeouts[i]);
        check_waits(timeouts[i]);
        check_blob_waits(timeouts[i]);
    }
    check_sizes(NULL, 0, 0, 0, 0);
    check_sizes("x", 1, 0, 0, 0);
    check_sizes(NULL, 1, EINVAL, EINVAL, EINVAL);
    for (i = 0; i < sizeof huge / sizeof *huge; i++)
        if (huge[i] == SBUS_PACKET_BYTES)
            check_sizes(room, huge[i], EMSGSIZE, ENOBUFS, 0);
        else
            check_sizes("x", huge[i], EMSGSIZE, ENOBUFS, huge[i] > SIZE_MAX / 2 ? EINVAL : EFAULT);
    for (i = 0; i < sizeof windows / sizeof *windows; i++)
        check("window", windows[i], sbus_stream_start(&bus, "echo", "x", 1, NULL, windows[i], INT_MAX), EINVAL, EINVAL);
    for (i = 0; i < 24; i++) {
        sbus_batch_start(&batch, i ? room : NULL, i);
        check("sbus_batch_start", (long long)i, sbus_batch_publish(&batch, "k", "x", 1), i >= 13 + 4 + 7 ? 0 : ENOBUFS, ENOBUFS);
    }
    check("sbus_parse", 0, sbus_parse("", 0, &packet), EINVAL, EPROTO);
    check_terms(INT_MIN, 0, EINVAL);
    check_terms(-1, 0, EINVAL);
    check_terms(600000, 0, 0);
    check_terms(600001, 0, EINVAL);
    check_terms(INT_MAX, 0, EINVAL);
    check_terms(0, 1, 0);
    check_terms(0, 1000000, 0);
    check_terms(0, 1000001, EINVAL);
    check_terms(0, UINT_MAX, EINVAL);
    sbus_close(&service);
    sbus_close(&caller);
    sbus_close(&bus);
    puts("checked");
    return 0;
}
