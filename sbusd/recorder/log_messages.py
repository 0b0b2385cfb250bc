"""What the recorder tells whoever runs it. Spec: sbus-recorder(8)."""

from __future__ import annotations

from typing import Protocol

from sbusd.systemd.journal import Event, EventJournal, Priority

STARTED = Event("f83194e7ae9c4940ab42b7a193481e6d", Priority.INFO, "started", "recording {address} into {archive} as host {host}")
STOPPED = Event(
    "3efc5200544b44bb842c6d642f4f13c9",
    Priority.INFO,
    "stopped",
    "stopped recording: {rows} rows in {files} files, and {lost} that are missing",
)
SUSPENDED = Event(
    "11bdf7db962641029e02d23e69d01649",
    Priority.ERR,
    "suspended",
    "cannot write the record, so recording is suspended: {reason}; the bus goes on, what is missing is counted",
)
RESUMED = Event("79c71665d50a40a588afad34b4676374", Priority.NOTICE, "resumed", "recording again; rows that are missing: {lost}")
TAP_LOSS = Event(
    "a1a51c60818b49adb64f5998b438b80a",
    Priority.WARNING,
    "tap-loss",
    "the recorder is too slow for the bus; rows that are missing: {lost} in the last minute or so",
)
BUS_AWAY = Event("9d6525330db547798b8c92356789da53", Priority.NOTICE, "bus-away", "the bus has gone: {reason}; waiting for it")
BUS_BACK = Event("8be93d24400048d9b846ffd31f8d96ea", Priority.NOTICE, "bus-back", "the bus is back after {seconds} s")
RECOVERED = Event(
    "fa4f0d2b4fe14a7eb794f67b176b2c1d",
    Priority.NOTICE,
    "recovered",
    "rows of an earlier run were still in the write-ahead and are recorded now: {rows}; bytes behind them that are no whole batch: {torn}",
)
DAMAGED = Event(
    "7a539332ce344dc7ab7fe578aa6eb940",
    Priority.ERR,
    "damaged",
    "the write-ahead {file} is damaged: {reason}",
)
ARCHIVE_FAILED = Event(
    "a39530bd0c104f5e90d99df988a2006d",
    Priority.ERR,
    "archive-failed",
    "cannot write into the archive: {reason}; the write-ahead is kept, and tried again",
)
ARCHIVE_AGAIN = Event("965c24b41c264ab2bfc222d060024b81", Priority.NOTICE, "archive-again", "writing into the archive again")
REMOVED = Event(
    "404f6ff6abc5411f9849dae80733034f",
    Priority.INFO,
    "removed",
    "segments that were removed because of {because}: {segments}, {bytes} bytes, of {whose}",
)
UNREADABLE = Event(
    "121a6f41f2524e3590895cc9818ecfaf",
    Priority.WARNING,
    "unreadable",
    "the bus tells something that this recorder does not understand; packets so far: {count}; is the bus newer?",
)
CROWDED = Event(
    "e90d668a17d5409e9e8532e71c11a081",
    Priority.WARNING,
    "crowded",
    "more subscriptions than are remembered; those that the record cannot tell recipients by, so far: {count}",
)

EVENTS = tuple(value for value in vars().values() if isinstance(value, Event))
"""All of them."""


class Journal(Protocol):
    """A place for what is told."""

    def tell(self, event: Event, **facts: str | int) -> None:
        """Tell that *event* happened, with its *facts*. Never raises."""


class RecorderJournal(EventJournal):
    """Tells what the recorder has to tell."""

    identifier = "sbus-recorder"
