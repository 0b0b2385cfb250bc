/* A client of the message bus sbusd(8). See sbus.h(3).
 *
 * All functions are static inline, so a program needs no library. The header needs C99 or C++11, and POSIX.1-2008.
 *
 *     struct sbus bus;
 *     if (sbus_connect(&bus, NULL, 0) < 0 || sbus_publish(&bus, "chat/c", "hello", 5) < 0)
 *         fprintf(stderr, "%s\n", sbus_error(&bus));
 *     sbus_close(&bus);
 */
#ifndef SBUS_H
#define SBUS_H

/* With -std=c99 the C library declares POSIX functions only on request. */
#if defined __STRICT_ANSI__ && !defined _POSIX_C_SOURCE && !defined _XOPEN_SOURCE && !defined _DEFAULT_SOURCE && !defined _GNU_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <time.h>

#ifndef CLOCK_MONOTONIC
#error "include sbus.h before all other headers, or define _POSIX_C_SOURCE as 200809L on the command line of the compiler"
#endif

#include "sbus/packet.h"
#include "sbus/batch.h"
#include "sbus/address.h"
#include "sbus/json.h"
#include "sbus/members.h"
#include "sbus/trace_context.h"
#include "sbus/envelope.h"
#include "sbus/pending_call.h"
#include "sbus/connection.h"
#include "sbus/subscription.h"
#include "sbus/connect.h"
#include "sbus/open_request.h"
#include "sbus/publish.h"
#include "sbus/receive.h"
#include "sbus/response.h"
#include "sbus/service.h"
#include "sbus/callees.h"
#include "sbus/call.h"
#include "sbus/stream.h"
#include "sbus/blob_message.h"

#endif
