#include "wire.h"

#include "bus.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

struct wire *wire_open(const struct protocol *protocol, const char *address, size_t payload) {
    errno = 0;
    struct wire *wire = protocol->connect(protocol, address);
    wire->payload = payload;
    protocol->greet(wire);
    protocol->frame(wire);
    return wire;
}

void piece_print(struct piece *piece, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(piece->bytes, sizeof piece->bytes, format, arguments);
    va_end(arguments);
    if (length < 0 || length >= (int)sizeof piece->bytes)
        die("a head of a message is too long");
    piece->length = (size_t)length;
}
