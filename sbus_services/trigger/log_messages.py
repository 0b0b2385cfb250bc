"""The log messages of the trigger. Spec: sbus-trigger(8), "LOG MESSAGES".

Users can cause most of these messages. `sbus_programs.systemd.log_records` logs repeated ones of one cause once per interval.
"""

from __future__ import annotations

from sbus_programs.systemd.log_records import LogMessage, Priority

STARTED = LogMessage("2e0b102e039a4bffabb68114a7288816", Priority.INFO, "started", "started with {rules} rules for the bus at {bus}")
STOPPED = LogMessage(
    "3fcd6e57390543648bfb650f14727698", Priority.INFO, "stopped", "stopped; messages whose action was not requested: {lost}"
)
BUS_AVAILABLE = LogMessage("e753a528ff7f49de82bb0ee19f3971f8", Priority.INFO, "bus-available", "connected to the bus at {bus}")
BUS_UNAVAILABLE = LogMessage(
    "93fe359c0897465c9d03619836ecd218", Priority.WARNING, "bus-unavailable", "no connection to the bus: {reason}; occurrences: {count}"
)
FIRED = LogMessage(
    "6f71d51bbe6442179a614e301f072598", Priority.INFO, "fired", "rule {rule}: {action} of {unit} succeeded; records left out: {omitted}"
)
FAILED = LogMessage(
    "127a0152ef82469689b17827286ed98f", Priority.ERR, "failed", "rule {rule}: {action} of {unit} failed: {reason}; occurrences: {count}"
)
NOT_USED = LogMessage(
    "d05bdae8463b4fe39487b6339e4562ec",
    Priority.WARNING,
    "not-used",
    "rule {rule} did not use a message: {reason}; messages: {count}",
)
SUSPENDED = LogMessage(
    "eeb92269362748ccaf684f40b62027b0",
    Priority.ERR,
    "suspended",
    "rule {rule} is suspended for a user for {seconds} s, perhaps because of a loop: {reason}; occurrences: {count}",
)
LOST = LogMessage(
    "c2a733a5aa57430085e0c0c434a2b6eb",
    Priority.WARNING,
    "lost",
    "messages for rule {rule} were lost, in total {lost}; occurrences: {count}",
)
OVERFLOW = LogMessage(
    "ec173aca09164f5a80ad06fa19c6b713",
    Priority.WARNING,
    "overflow",
    "rule {rule} did not use a message, because too many units wait for their start; messages: {count}",
)
FAULT = LogMessage("1de2c0d4a1ad4543a4bc2a07ee6c312f", Priority.ERR, "fault", "internal error: {reason}")

MESSAGES = tuple(value for value in vars().values() if isinstance(value, LogMessage))
"""Every message."""
