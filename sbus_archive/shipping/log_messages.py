"""The log messages of the shipper. Spec: sbus-ship(8)."""

from __future__ import annotations

from sbus_programs.systemd.log_records import LogMessage, Priority

STARTED = LogMessage(
    "5f0b6a3c1d8e4b27a9c05e7d2f4816b3", Priority.INFO, "started", "started shipping {archive} of host {host} to {destination}"
)
STOPPED = LogMessage(
    "c2d94e7f60a1483bb5e8173f9ad20c64",
    Priority.INFO,
    "stopped",
    "stopped shipping: {segments} segments with {bytes} bytes shipped, {waiting} waiting, {lost} lost",
)
FAILED = LogMessage(
    "8e41b7d05c2f4a96b3d7f1e80a6952cd",
    Priority.WARNING,
    "failed",
    "failed to ship: {reason}; failures so far: {count}; retrying",
)
RESUMED = LogMessage("17a6c9e2b4d84f03958be2d06c7f31a5", Priority.NOTICE, "resumed", "resumed shipping after {count} failures")
RETRIED = LogMessage("d36f1e8a7b5c4209a4e90c5db1827f36", Priority.NOTICE, "retried", "{reason}")
UNREADABLE = LogMessage(
    "b90e5d27c6a84f1e8d3b704ac15f92e6",
    Priority.ERR,
    "unreadable",
    "skipped a segment that cannot be shipped: {reason}; skipped so far: {count}",
)
LOST = LogMessage(
    "4c7d82a19f3e4d65b0a82e6fc95130d7",
    Priority.ERR,
    "lost",
    "cannot ship {name}: the recorder removed the segment before it was shipped; lost so far: {count}",
)
EXPIRED = LogMessage(
    "e15a90c3d7b24e8f96cd4b08a72f6e31",
    Priority.INFO,
    "expired",
    "removed {count} segments from the destination, the last is {name}: the retention time is over",
)
NOT_MERGED = LogMessage(
    "a82f6c03d15b4e97b6c4e07f92d8315a",
    Priority.WARNING,
    "not-merged",
    "cannot merge {count} index entries of past days in the destination: {reason}",
)
DATE = LogMessage("c80f5a29e6134d7bb1a47e03d95f28e1", Priority.WARNING, "date", "{reason}")

MESSAGES = tuple(value for value in vars().values() if isinstance(value, LogMessage))
"""Every message."""
