/* The trace context of a request: the traceparent of W3C Trace Context, level 1. No I/O. Spec: sbus-rpc(7) section 2. */
#ifndef SBUS_TRACE_CONTEXT_H
#define SBUS_TRACE_CONTEXT_H

#include "packet.h"

#define SBUS_CONTEXT_BYTES 256u /* the longest trace context: version 00 has 55 bytes, and later ones can have more */

/* Remove *digits* hexadecimal digits in lower case from *text*. They must not all be *excluded*; that is 0 if they may. */
static inline bool sbus_skip_digits_(struct sbus_bytes *text, size_t digits, char excluded) {
    size_t i, equal = 0;
    if (text->size < digits)
        return false;
    for (i = 0; i < digits; i++) {
        char c = text->data[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        equal += c == excluded;
    }
    *text = sbus_after_(*text, digits);
    return equal < digits;
}

/* Return whether *text* is a trace context. */
static inline bool sbus_is_context_(struct sbus_bytes text) {
    struct sbus_bytes rest = text;
    size_t i;
    if (text.size > SBUS_CONTEXT_BYTES || !sbus_skip_digits_(&rest, 2, 'f') || !sbus_skip_(&rest, "-") ||
        !sbus_skip_digits_(&rest, 32, '0') || !sbus_skip_(&rest, "-") || !sbus_skip_digits_(&rest, 16, '0') || !sbus_skip_(&rest, "-") ||
        !sbus_skip_digits_(&rest, 2, 0))
        return false;
    if (rest.size && (rest.data[0] != '-' || sbus_starts(text, "00-")))
        return false;
    for (i = 0; i < rest.size; i++)
        if (rest.data[i] < '!' || rest.data[i] > '~')
            return false;
    return true;
}

#endif
