"""The log messages of sbus-blob. Spec: sbus-blob(8), "LOG MESSAGES".

Any user can cause most of them. `sbus_programs.systemd.log_records` logs repeated ones of one cause once per interval.
"""

from __future__ import annotations

from sbus_programs.systemd.log_records import LogMessage, Priority

STARTED = LogMessage("42c13a2b79bb44c78254a503476ed548", Priority.INFO, "started", "serving blobs on {address}")
STOPPED = LogMessage("2e4db89a202e42d287d1c0d01abe9a81", Priority.INFO, "stopped", "stopped serving blobs; dropped {blobs} of them")
QUOTA = LogMessage("f0df692c51c34e1bbcffc019a67fc6f9", Priority.WARNING, "quota", "refused a request: {reason}; times: {count}")
REJECTED = LogMessage(
    "f8441cef235346c69d2cc9658ba3f95e", Priority.WARNING, "rejected", "rejected a descriptor of user {user}: {reason}; times: {count}"
)
MALFORMED = LogMessage(
    "439752352dfb49b1a602de203184d187", Priority.WARNING, "malformed", "closed a connection of user {user}: {reason}; times: {count}"
)
GUESSING = LogMessage(
    "72532a5749e147dca30632246b2d1b35",
    Priority.WARNING,
    "guessing",
    "refused tickets of user {user}: too many were unknown; times: {count}",
)
CLOSES = LogMessage(
    "e3edc655bd954476a243ed481695e66a",
    Priority.WARNING,
    "closes",
    "suspended the requests of user {user}: {pending} descriptors wait to be closed; times: {count}",
)
PAUSED = LogMessage(
    "fb97b5a77209441b885ce4c5587735d6",
    Priority.WARNING,
    "paused",
    "paused accepting connections: {reason}; times: {count}",
)
FULL = LogMessage("fdd119b85e874788b2db52010b86041a", Priority.WARNING, "full", "no descriptor left for a request; times: {count}")
NO_BUS = LogMessage("9de9e4fb1d5e4410852e3423cccde9b9", Priority.WARNING, "no-bus", "cannot ask the bus: {reason}; times: {count}")
PASSED = LogMessage(
    "ee3a343b813b4006a1b00ddfdd254a40", Priority.NOTICE, "passed", "user {user} took a descriptor from user {owner}; times: {count}"
)
FAULT = LogMessage("8819b86b0b6e496080dfe309c0bafc7a", Priority.ERR, "fault", "internal error: {reason}; times: {count}")

MESSAGES = tuple(value for value in vars().values() if isinstance(value, LogMessage))
"""Every message."""
