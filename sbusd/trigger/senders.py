"""The users whose messages start units. Only the bus says who has sent a message; see trigger.toml(5), ``from`` and ``vouched_by``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sbusd.config.trigger import EVERY_USER, TriggerRule
from sbusd.config.users import ChargedUsers
from sbusd.protocol.credentials import Peer, local_author


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
