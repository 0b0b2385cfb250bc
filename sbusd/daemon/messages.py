"""What the bus records, each with an id of its own by which the journal and its catalog know it. Spec: sbusd(8), systemd.journal-fields(7).

An id was made once, at random, and never changes; the words may. ``{names}`` in the words are facts that
:meth:`sbusd.daemon.journal.Journal.record` is given, which also become fields of the record, ``SBUS_<NAME>``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Priority(enum.IntEnum):
    """How urgent a record is, syslog(3)."""

    EMERG = 0
    ALERT = 1
    CRIT = 2
    ERR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6
    DEBUG = 7


@dataclass(frozen=True, slots=True)
class LogMessage:
    """One thing that can be recorded: ``id`` is 128 bits in hex, ``name`` is for readers of the code and of statistics."""

    id: str
    priority: Priority
    name: str
    words: str


STARTED = LogMessage("3ee6e31eb91f4cacacd8a352d87d2d88", Priority.INFO, "started", "the bus is ready at {address}, version {version}")
STOPPED = LogMessage("d13ce47e04754db2b14253005347267b", Priority.INFO, "stopped", "the bus has stopped: {reason}")
CLIENT_REFUSED = LogMessage(
    "bd33310222a0494e8ee20be8a6ea6397", Priority.NOTICE, "client-refused", "a connection was refused: this user may not use the bus"
)
CREDENTIALS_UNKNOWN = LogMessage(
    "1c4bcf6a23ac4f618aaaa9f9c2082ec6", Priority.ERR, "credentials-unknown", "a connection was refused: {reason}"
)
SECRET_REFUSED = LogMessage(
    "05b0dbafb2f4458cb04434240b88d62d", Priority.NOTICE, "secret-refused", "a subscription to a secret key was refused: {reason}"
)
RESERVED_KEY_REFUSED = LogMessage(
    "c85690b70aa5420687d23f4e9c1d922a", Priority.NOTICE, "reserved-key-refused", "a reserved key was refused in {packet}, times: {count}"
)
TOO_LONG_REFUSED = LogMessage(
    "5d7192296ea54bd6afc0d06b0333c74a", Priority.NOTICE, "too-long-refused", "{packet} refused, times: {count}: {reason}"
)
MALFORMED_PACKET = LogMessage(
    "d3168e60c85f453f9074341cf36c6357", Priority.NOTICE, "malformed-packet", "a malformed packet, so the client was disconnected: {reason}"
)
PACKETS_LOST = LogMessage(
    "42f13a4bdc354a9fb0e263134c20ef30",
    Priority.WARNING,
    "packets-lost",
    "a client reads too slowly; packets for it that were discarded: {count}",
)
ACCEPT_FAILED = LogMessage(
    "1d8e8c62adb34b549f1e0aedce87217b",
    Priority.ERR,
    "accept-failed",
    "a connection could not be accepted: {reason}; let the bus have more descriptors (LimitNOFILE=)",
)
CONFIGURATION_ERROR = LogMessage("8345b5252cf84bbc82de4656f791ad96", Priority.ERR, "configuration-error", "{reason}")
INTERNAL_ERROR = LogMessage(
    "8cab299d59544cd6b3dc203628c0e134",
    Priority.CRIT,
    "internal-error",
    "an error in the bus itself, in {where}: {reason}; please report it",
)
CLIENT_CONNECTED = LogMessage("92a622edd65547a6aa6cf665ed58abd1", Priority.DEBUG, "client-connected", "a client has connected")
CLIENT_DISCONNECTED = LogMessage("37b2e86566f341f2b394371ecaf6baee", Priority.DEBUG, "client-disconnected", "a client has gone: {reason}")
SUPPRESSED = LogMessage("f8c730d37c22450d91c169fc5dfd85c1", Priority.NOTICE, "suppressed", "{count} more like this from {whom}: {name}")
RECORDS_DROPPED = LogMessage(
    "4c3918ef0dd747e29bc08efbb76e2476", Priority.WARNING, "records-dropped", "records that could not be written, and are lost: {count}"
)

MESSAGES: tuple[LogMessage, ...] = tuple(value for value in globals().values() if isinstance(value, LogMessage))
"""Every message there is."""
