"""The log messages of the recorder. Spec: sbus-recorder(8)."""

from __future__ import annotations

from sbus_programs.systemd.log_records import LogMessage, Priority

STARTED = LogMessage(
    "f83194e7ae9c4940ab42b7a193481e6d", Priority.INFO, "started", "started recording {address} into {archive} as host {host}"
)
STOPPED = LogMessage(
    "3efc5200544b44bb842c6d642f4f13c9",
    Priority.INFO,
    "stopped",
    "stopped recording: {rows} rows written in {files} files, {lost} rows missing",
)
SUSPENDED = LogMessage(
    "11bdf7db962641029e02d23e69d01649",
    Priority.ERR,
    "suspended",
    "suspended recording: cannot write: {reason}; the bus is not affected, and missing rows are counted",
)
RESUMED = LogMessage("79c71665d50a40a588afad34b4676374", Priority.NOTICE, "resumed", "resumed recording; rows missing: {lost}")
TAP_LOSS = LogMessage(
    "a1a51c60818b49adb64f5998b438b80a",
    Priority.WARNING,
    "tap-loss",
    "lost {lost} rows since the last report: the recorder is too slow for the bus",
)
UNREAD = LogMessage(
    "5c1e90b7d2f84a63a94e7f03c68d1b25",
    Priority.WARNING,
    "unread",
    "lost an unknown number of rows at the end: the bus sent nothing for {seconds} s, and had not sent all that was queued",
)
BUS_UNAVAILABLE = LogMessage(
    "9d6525330db547798b8c92356789da53", Priority.NOTICE, "bus-unavailable", "lost the connection to the bus: {reason}; reconnecting"
)
BUS_AVAILABLE = LogMessage("8be93d24400048d9b846ffd31f8d96ea", Priority.NOTICE, "bus-available", "reconnected to the bus after {seconds} s")
RECOVERED = LogMessage(
    "fa4f0d2b4fe14a7eb794f67b176b2c1d",
    Priority.NOTICE,
    "recovered",
    "recovered {rows} rows from the write-ahead log of an earlier run; dropped {torn} bytes of an incomplete batch",
)
DAMAGED = LogMessage(
    "7a539332ce344dc7ab7fe578aa6eb940",
    Priority.ERR,
    "damaged",
    "found a damaged write-ahead log {file}: {reason}",
)
INDEX_DAMAGED = LogMessage(
    "0c5e8f3b7d2a4916b8a1f64e93d7c052",
    Priority.ERR,
    "index-damaged",
    "found {count} damaged files in the index, whose segments are not removed: {reason}",
)
ARCHIVE_FAILED = LogMessage(
    "a39530bd0c104f5e90d99df988a2006d",
    Priority.ERR,
    "archive-failed",
    "failed to write to the archive: {reason}; the write-ahead log is kept, and the recorder retries",
)
ARCHIVE_RESUMED = LogMessage("965c24b41c264ab2bfc222d060024b81", Priority.NOTICE, "archive-resumed", "resumed writing to the archive")
REMOVED = LogMessage(
    "404f6ff6abc5411f9849dae80733034f",
    Priority.INFO,
    "removed",
    "removed {segments} segments of {whose}, {bytes} bytes, because of {because}",
)
NOT_SHIPPED = LogMessage(
    "6b9f2c81e07d4a35b14cd83e5f70a926",
    Priority.NOTICE,
    "not-shipped",
    "kept {segments} expired segments that are not shipped: {reason}",
)
REMOVED_UNSHIPPED = LogMessage(
    "a05c7d1936be4f82917e40cbd26f8e13",
    Priority.ERR,
    "removed-unshipped",
    "removed segments before they were shipped, because of the quota: {segments} so far, {bytes} bytes",
)
NOT_MERGED = LogMessage(
    "d74b0e5f93a84c1695e2cb8f06317ad8",
    Priority.WARNING,
    "not-merged",
    "cannot merge {count} index entries of past days: {reason}",
)
UNREADABLE = LogMessage(
    "121a6f41f2524e3590895cc9818ecfaf",
    Priority.WARNING,
    "unreadable",
    "received {count} packets so far that this recorder does not understand; the bus may be newer",
)
TOO_MANY_SUBSCRIPTIONS = LogMessage(
    "e90d668a17d5409e9e8532e71c11a081",
    Priority.WARNING,
    "too-many-subscriptions",
    "exceeded the limit of remembered subscriptions; not remembered so far: {count}",
)
NOT_SERVED = LogMessage(
    "130048a6b3c844f6b31e2ee26ffa9146",
    Priority.WARNING,
    "not-served",
    "failed to serve recorder/close on the bus: {reason}",
)
DATE = LogMessage("3b7de04f81a94c5c9f62d1a8e57c0b46", Priority.WARNING, "date", "{reason}")

MESSAGES = tuple(value for value in vars().values() if isinstance(value, LogMessage))
"""Every message."""
