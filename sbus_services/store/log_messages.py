"""The log messages of the store. Spec: sbus-store(8), "LOG MESSAGES".

Users can cause some of these messages. `sbus_programs.systemd.log_records` logs repeated ones of one cause once per interval.
"""

from __future__ import annotations

from sbus_programs.systemd.log_records import LogMessage, Priority

STARTED = LogMessage(
    "1f16149409fa4d749f4f41c24b7f54a9", Priority.INFO, "started", "started; streams: {streams}, queues: {queues}, file: {file}"
)
STOPPED = LogMessage("8d662adbb8d8423a97448ebf0548cf0b", Priority.INFO, "stopped", "stopped; everything acknowledged is in {file}")
RELOADED = LogMessage(
    "a4707ab622d94a58b54fe572989fbfea", Priority.INFO, "reloaded", "reloaded the configuration; streams: {streams}, queues: {queues}"
)
RELOAD_REFUSED = LogMessage(
    "e3cbfbcf33e14fad84f5dcb66e58ae97",
    Priority.ERR,
    "reload-refused",
    "the configuration was not reloaded, the former one still holds: {reason}",
)
BUS_AVAILABLE = LogMessage("b37569392577495e9a2e250bb3751605", Priority.INFO, "bus-available", "connected to the bus at {bus}")
BUS_UNAVAILABLE = LogMessage(
    "ffd80c47747944b3b9e1cf5fa2fc23c5", Priority.WARNING, "bus-unavailable", "no connection to the bus: {reason}; occurrences: {count}"
)
NOT_STORED = LogMessage("9a9b05c86abe4a31bfae79ecb53503e5", Priority.WARNING, "not-stored", "{reason}; occurrences: {count}")
DEAD_LETTER = LogMessage(
    "f61da7062ba04bcd8d79ee096c267216",
    Priority.NOTICE,
    "dead-letter",
    "a job of queue {queue} failed for the last time: {reason}; dead letters: {count}",
)
PROBLEM = LogMessage("648fd2639e814ce58554f9a21fca07cb", Priority.WARNING, "problem", "{reason}; occurrences: {count}")
FAULT = LogMessage("aff84fef03b6419ba9ac38e7f5bb9a8a", Priority.ERR, "fault", "internal error: {reason}")

MESSAGES = tuple(value for value in vars().values() if isinstance(value, LogMessage))
"""Every message."""
