"""The users whose messages start units. Only the bus says who has sent a message; see trigger.toml(5), ``from`` and ``vouched_by``."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sbusd.client import Bus
from sbusd.client.errors import SbusError
from sbusd.config.trigger import EVERY_USER, TriggerRule
from sbusd.config.users import ChargedUsers
from sbusd.protocol import controls
from sbusd.protocol.credentials import Peer, local_author

ANSWER_SECONDS = 5.0


def warnings(bus: str, rules: Iterable[TriggerRule]) -> list[str]:
    """Return one line for each of *rules* with keys that a user whom no rule of *bus* names may publish to.

    If the bus is not available, the only line says so.
    """
    closed = [rule for rule in rules if rule.when == "message" and EVERY_USER not in rule.senders]
    if not closed:
        return []
    try:
        with Bus.connect(bus, timeout=ANSWER_SECONDS, name="sbus-trigger check") as asking:
            found = [(rule.title, [key for key in rule.keys if _is_open(asking, key)]) for rule in closed]
    except (SbusError, OSError, ValueError, KeyError, TypeError) as error:
        return [f"cannot check who may publish to the keys of the rules: {error}"]
    return [
        f"rule {title}: every user may publish to {', '.join(keys)}: add a [[policy]] to sbusd.toml that permits only the users in from"
        for title, keys in found
        if keys
    ]


def _is_open(bus: Bus, pattern: str) -> bool:
    """Return whether a user whom no rule names may publish to a key that *pattern* matches. Raises SbusError, ValueError, KeyError."""
    key = pattern.replace("*", "x") + ("x" if pattern.endswith("/") or not pattern else "")
    answer = json.loads(bus.control(controls.EXPLAIN, b"\0publish\0" + key.encode()))
    return bool(answer["allowed"])


@dataclass(frozen=True, slots=True)
class Sender:
    """A process of a user of this host. ``charged`` is the user whose limits it takes; ``voucher`` is the user of the service that
    passed its message on, or None."""

    uid: int
    gid: int
    pid: int
    charged: int
    voucher: int | None = None


def sender_of(rule: TriggerRule, peer: Peer | None, charged: ChargedUsers) -> Sender | None:
    """Return the sender of a message if it counts for *rule*, else None."""
    found = _local(rule.vouched_by, peer, charged)
    return found if found is not None and (found.uid in rule.senders or EVERY_USER in rule.senders) else None


def _local(vouchers: Collection[int], peer: Peer | None, charged: ChargedUsers) -> Sender | None:
    """Return the process of this host that *peer* is, or for which one of *vouchers* vouches; None for all others."""
    if peer is None:
        return None
    if not peer.origin_bytes:
        return Sender(peer.uid, peer.gid, peer.pid, charged.of(peer.uid))
    voucher = peer.voucher
    author = local_author(peer.origin_bytes)
    if author is None or voucher is None or voucher.uid not in vouchers:
        return None
    return Sender(author.uid, author.gid, author.pid, charged.of(author.uid), voucher.uid)
