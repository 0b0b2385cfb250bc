/* Does on a bus what standard input says, a command in a line, and writes a line for each: tests/support/c_programs.py. */
#include <sbus.h>

#include "actions.h"

static void connect_bus(struct actor *actor, const char *options) {
    unsigned flags = 0;
    flags |= strchr(options, 'r') ? SBUS_RECONNECT : 0;
    flags |= strchr(options, 'b') ? SBUS_BATCHES : 0;
    flags |= strchr(options, 's') ? SBUS_SENDERS : 0;
    flags |= strchr(options, 'n') ? SBUS_NONBLOCK : 0;
    say(&actor->bus, sbus_connect(&actor->bus, NULL, flags));
}

static void publish_batch(struct actor *actor, const char *key, long count, size_t size) {
    static char room[SBUS_BATCH_BYTES];
    struct sbus_batch batch;
    int status = 0;
    sbus_batch_start(&batch, room, sizeof room);
    for (long i = 0; i < count && status == 0; i++) {
        char *payload = numbered(actor, i, size);
        if (sbus_batch_publish(&batch, key, payload, size) == 0)
            continue;
        status = sbus_send_batch(&actor->bus, &batch);
        if (status == 0)
            status = sbus_batch_publish(&batch, key, payload, size);
    }
    say(&actor->bus, status < 0 ? status : sbus_send_batch(&actor->bus, &batch));
}

static void publish_many(struct actor *actor, const char *key, long count, size_t size) {
    struct sbus *bus = &actor->bus;
    int status = 0;
    /* A connection that gathers sends a publication at once that comes late: this one may be the one that the socket does not accept. */
    for (long i = 0; i < count && (status == 0 || (errno == EAGAIN && bus->gather_buffer_ && !sbus_batch_count(&bus->gathered_))); i++)
        status = sbus_publish(bus, key, numbered(actor, i, size), size);
    say(&actor->bus, status);
}

static void wait_and_show(struct actor *actor, int timeout_ms) {
    struct sbus_packet packet;
    int status = sbus_next(&actor->bus, &packet, timeout_ms);
    if (status == 1)
        show(&packet);
    else if (status == 0)
        puts("nothing");
    else
        say(&actor->bus, status);
}

/* Wait as an event loop does, with poll(2) around the header. */
static void poll_and_show(struct actor *actor) {
    struct sbus_packet packet;
    int status;
    while ((status = sbus_next(&actor->bus, &packet, 0)) == 0) {
        struct pollfd ready;
        ready.fd = sbus_fd(&actor->bus);
        ready.events = sbus_events(&actor->bus);
        poll(&ready, 1, sbus_timeout(&actor->bus, -1));
    }
    if (status == 1)
        show(&packet);
    else
        say(&actor->bus, status);
}

/* Serve commands until "halt" is called: "echo" returns its argument, "fail" an error, "long" a result that no packet can hold. */
static void serve(struct actor *actor) {
    static const char *const commands[] = {"echo", "fail", "long", "halt"};
    static char result[SBUS_PACKET_BYTES];
    struct sbus *bus = &actor->bus;
    struct sbus_packet packet;
    struct sbus_request request;
    int served = 0, status = 0, i;
    bool is_halted = false;
    for (i = 0; i < 4 && status == 0; i++)
        status = sbus_serve(bus, commands[i]);
    while (status == 0 && !is_halted && sbus_next(bus, &packet, -1) > 0)
        for (i = 0; i < 4; i++) {
            int found = sbus_take_request(bus, &packet, commands[i], &request);
            if (found < 0)
                printf("discarded\t%d\t%s\n", errno, sbus_error(bus));
            fflush(stdout);
            if (found <= 0)
                continue;
            served++;
            is_halted = i == 3;
            if (i == 1)
                sbus_respond_error(bus, &request, "it failed: \"\\\n\xc3\xa4");
            else if (i == 2)
                sbus_respond(bus, &request, result, sizeof result);
            else
                sbus_respond(bus, &request, request.data.data, request.data.size);
        }
    for (i = 0; i < 4 && status == 0; i++)
        status = sbus_stop_serving(bus, commands[i]);
    printf("served\t%d\n", served);
    say(bus, status);
}

/* Respond to the next request for a command. */
static void answer(struct actor *actor, const char *command) {
    struct sbus *bus = &actor->bus;
    struct sbus_packet packet;
    struct sbus_request request;
    int found = 0;
    while (found <= 0 && sbus_next(bus, &packet, -1) > 0)
        found = sbus_take_request(bus, &packet, command, &request);
    say(bus, found > 0 ? sbus_respond(bus, &request, request.data.data, request.data.size) : -1);
}

static void call(struct actor *actor, const char *command, size_t size, int timeout_ms) {
    struct sbus_reply reply;
    int status = sbus_call(&actor->bus, command, numbered(actor, 0, size), size, timeout_ms, &reply);
    if (status < 0)
        say(&actor->bus, status);
    else
        printf("reply\t%lld\t%zu\t%d\n", (long long)reply.callee.pid, reply.data.size,
               reply.data.size == size && (size == 0 || memcmp(reply.data.data, actor->payload, size) == 0));
}

static void act(struct actor *actor, const char *verb, const char *first, const char *second, const char *third) {
    struct sbus *bus = &actor->bus;
    if (!strcmp(verb, "connect"))
        connect_bus(actor, first);
    else if (!strcmp(verb, "subscribe"))
        say(bus, sbus_subscribe(bus, first));
    else if (!strcmp(verb, "unsubscribe"))
        say(bus, sbus_unsubscribe(bus, first));
    else if (!strcmp(verb, "join"))
        say(bus, sbus_join(bus, first, second));
    else if (!strcmp(verb, "leave"))
        say(bus, sbus_leave(bus, first, second));
    else if (!strcmp(verb, "publish"))
        say(bus, sbus_publish(bus, first, numbered(actor, 0, (size_t)atol(second)), (size_t)atol(second)));
    else if (!strcmp(verb, "many"))
        publish_many(actor, first, atol(second), (size_t)atol(third));
    else if (!strcmp(verb, "batch"))
        publish_batch(actor, first, atol(second), (size_t)atol(third));
    else if (!strcmp(verb, "receipt"))
        say(bus, sbus_publish_receipt(bus, first, NULL, 0, second));
    else if (!strcmp(verb, "control"))
        say(bus, sbus_control(bus, first, *second ? second : NULL, strlen(second)));
    else if (!strcmp(verb, "set"))
        say(bus, sbus_set(bus, first));
    else if (!strcmp(verb, "gather"))
        say(bus, sbus_gather(bus, atoi(first) != 0));
    else if (!strcmp(verb, "flush"))
        say(bus, sbus_flush(bus));
    else if (!strcmp(verb, "next"))
        wait_and_show(actor, atoi(first));
    else if (!strcmp(verb, "poll"))
        poll_and_show(actor);
    else if (!strcmp(verb, "serve-one"))
        say(bus, sbus_serve(bus, first));
    else if (!strcmp(verb, "serve-all"))
        say(bus, sbus_serve_all(bus, first));
    else if (!strcmp(verb, "answer"))
        answer(actor, first);
    else if (!strcmp(verb, "stop-serving"))
        say(bus, sbus_stop_serving(bus, first));
    else if (!strcmp(verb, "call"))
        call(actor, first, (size_t)atol(second), atoi(third));
    else if (!strcmp(verb, "serve"))
        serve(actor);
    else if (!strcmp(verb, "close"))
        say(bus, sbus_close(bus));
    else if (!act_on_request(actor, verb, first, second, third) && !act_on_blob(actor, verb, first, second, third))
        puts("unknown command");
}

int main(void) {
    static struct actor actor;
    static char line[8192];
    while (fgets(line, sizeof line, stdin)) {
        const char *words[4] = {"", "", "", ""};
        char *next = line;
        line[strcspn(line, "\n")] = 0;
        for (int i = 0; i < 4 && next; i++) { /* tabs between words, which can be empty */
            char *tab = strchr(next, '\t');
            words[i] = next;
            if (tab)
                *tab = 0;
            next = tab ? tab + 1 : NULL;
        }
        act(&actor, words[0], words[1], words[2], words[3]);
        fflush(stdout);
    }
    return 0;
}
