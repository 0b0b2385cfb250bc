"""Rules and messages for the tests of the trigger."""

from __future__ import annotations

from typing import Any

from sbus.items import Message
from sbus.protocol.credentials import Peer, make_peer, vouched_peer
from sbus_programs.config.trigger import Rate, TriggerRule

ALICE, BOB = 1000, 1001


def rule(**settings: Any) -> TriggerRule:
    """Return a rule for messages of Alice."""
    if not {"restart", "reload", "stop"} & settings.keys():
        settings.setdefault("start", "x.service")
    return TriggerRule(**{"keys": ("a/",), "senders": (ALICE,), **settings})


def rate(count: int, interval: float) -> Rate:
    """Return a limit."""
    return Rate(count, interval)


def peer(uid: int = ALICE, origin: bytes = b"") -> Peer:
    """Return a connection of *uid*, or an author for whom it vouches."""
    found = make_peer(7, b"!/cred/%d/%d/5" % (uid, uid))
    return vouched_peer(found, origin) if origin else found


def message(key: bytes = b"a/b", payload: bytes = b"", uid: int = ALICE) -> Message:
    """Return a message of *uid*."""
    return Message(key, payload, peer(uid))
