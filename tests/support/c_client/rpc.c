/* The commands of actor.c for calls and requests that go step by step: cancellation, streams, trace contexts. */
#include <sbus.h>

#include "actions.h"

static void say_reply(const struct sbus *bus, int status, const struct sbus_reply *reply, const char *name) {
    if (status < 0) {
        say(bus, status);
        return;
    }
    printf("%s\t%lld", name, (long long)reply->callee.pid);
    show_bytes(reply->data);
    putchar('\n');
}

static struct sbus_request *slot(struct actor *actor, const char *number) {
    return &actor->requests[*number == '1'];
}

/* Read one packet, and take it as a request for *command*. */
static void read_request(struct actor *actor, const char *command, const char *number) {
    struct sbus_packet packet;
    struct sbus_request taken;
    struct sbus *bus = &actor->bus;
    int found, status = sbus_next(bus, &packet, 30000);
    if (status <= 0) {
        say(bus, status ? status : sbus_fail_(bus, ETIMEDOUT, "nothing came"));
        return;
    }
    found = sbus_take_request(bus, &packet, command, &taken);
    if (found > 0) {
        *slot(actor, number) = taken;
        printf("request\t%s", taken.context);
        show_bytes(taken.data);
        putchar('\n');
    } else if (found < 0)
        printf("discarded\t%d\t%s\n", errno, sbus_error(bus));
    else
        show(&packet);
}

/* Read until the request is cancelled. */
static void await_cancel(struct actor *actor, const char *command, const char *number) {
    struct sbus_packet packet;
    struct sbus_request other;
    struct sbus *bus = &actor->bus;
    int status = 1;
    while (!sbus_request_cancelled(bus, slot(actor, number)) && (status = sbus_next(bus, &packet, -1)) > 0)
        (void)sbus_take_request(bus, &packet, command, &other);
    if (status > 0)
        puts("cancelled");
    else
        say(bus, status);
}

/* Take *count* requests without a response, and write how many of them have to be run. */
static void take_many(struct actor *actor, const char *command, long count) {
    struct sbus_packet packet;
    struct sbus_request request;
    struct sbus *bus = &actor->bus;
    long taken = 0;
    while (count > 0 && sbus_next(bus, &packet, 30000) > 0) {
        int found = sbus_take_request(bus, &packet, command, &request);
        taken += found > 0;
        count -= found != 0;
    }
    printf("taken\t%ld\n", taken);
}

/* Read parts until the stream ends, and write their number, and whether they are the numbers from 0 on. */
static void drain(struct actor *actor) {
    struct sbus_reply part;
    struct sbus *bus = &actor->bus;
    long count = 0, wrong = 0;
    char number[30];
    int status;
    while ((status = sbus_stream_next(bus, 30000, &part)) > 0) {
        snprintf(number, sizeof number, "%ld", count++);
        wrong += !sbus_equal(part.data, number);
    }
    if (status < 0)
        say(bus, status);
    else
        printf("drained\t%ld\t%ld\n", count, wrong);
}

static bool act_as_caller(struct actor *actor, const char *verb, const char *first, const char *second, const char *third) {
    struct sbus *bus = &actor->bus;
    struct sbus_reply reply;
    int status;
    if (!strcmp(verb, "call-traced")) {
        status = sbus_call_traced(bus, first, NULL, 0, *second ? second : NULL, atoi(third), &reply);
        say_reply(bus, status, &reply, "reply");
    } else if (!strcmp(verb, "start"))
        say(bus, sbus_call_start(bus, first, NULL, 0, *second ? second : NULL, atoi(third)));
    else if (!strcmp(verb, "wait")) {
        status = sbus_call_wait(bus, atoi(first), &reply);
        say_reply(bus, status, &reply, "reply");
    } else if (!strcmp(verb, "cancel"))
        say(bus, sbus_call_cancel(bus));
    else if (!strcmp(verb, "stream"))
        say(bus, sbus_stream_start(bus, first, second, strlen(second), NULL, (unsigned)atoi(third), 30000));
    else if (!strcmp(verb, "part")) {
        status = sbus_stream_next(bus, atoi(first), &reply);
        say_reply(bus, status, &reply, status ? "part" : "end");
    } else if (!strcmp(verb, "drain"))
        drain(actor);
    else
        return false;
    return true;
}

bool act_on_request(struct actor *actor, const char *verb, const char *first, const char *second, const char *third) {
    struct sbus *bus = &actor->bus;
    if (!strcmp(verb, "read"))
        read_request(actor, first, second);
    else if (!strcmp(verb, "await-cancel"))
        await_cancel(actor, first, second);
    else if (!strcmp(verb, "take-many"))
        take_many(actor, first, atol(second));
    else if (!strcmp(verb, "cancelled"))
        printf("%d\n", sbus_request_cancelled(bus, slot(actor, first)));
    else if (!strcmp(verb, "accepted"))
        printf("%u\n", sbus_parts_accepted(bus, slot(actor, first)));
    else if (!strcmp(verb, "send-part"))
        say(bus, sbus_respond_part(bus, slot(actor, first), numbered(actor, 0, (size_t)atol(second)), (size_t)atol(second)));
    else if (!strcmp(verb, "send-end"))
        say(bus, sbus_respond_end(bus, slot(actor, first)));
    else if (!strcmp(verb, "respond"))
        say(bus, sbus_respond(bus, slot(actor, first), second, strlen(second)));
    else if (!strcmp(verb, "respond-error"))
        say(bus, sbus_respond_error(bus, slot(actor, first), second));
    else
        return act_as_caller(actor, verb, first, second, third);
    return true;
}
