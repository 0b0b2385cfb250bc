"""Blocked publishers, and the recipients that block them, as members of replies. Spec: sbus-protocol(7) §6 and §7.

Each client may know that it is blocked or blocks others, and for how long, because it could measure that. The other connection is shown
only to clients that may see it anyway.
"""

from __future__ import annotations

from sbusd.broker.policy import Policy
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.blocking import Wait
from sbusd.dataplane.contract import Switch

LISTED_BLOCKERS = 20
"""Maximum number of blocking recipients in one reply: with four publishers each, about 5 kB of JSON."""


def of_connection(switch: Switch, roster: Roster, viewer: Client, connection: int, *, sees_all: bool = False) -> dict[str, object]:
    """Return the connections that block *connection*, and those that it blocks, as *viewer* may see them; *sees_all*: all of them."""
    waits = switch.waits(connection)
    return {
        "pace": waits.is_paced,
        "blocked_ms": waits.blocked_ms,
        "blocked_by_count": waits.blocked_by_count,
        "blocked_by": [_named(roster, viewer, each, sees_all=sees_all) for each in waits.blocked_by],
        "blocked_others_ms": waits.blocked_others_ms,
        "blocks_count": waits.blocks_count,
        "blocks": [_named(roster, viewer, each, sees_all=sees_all) for each in waits.blocks],
    }


def now(switch: Switch, roster: Roster, viewer: Client) -> list[dict[str, object]]:
    """Return the current waits, at most those for :data:`LISTED_BLOCKERS` recipients, as *viewer* may see them, grouped by recipient."""
    found = []
    for number in switch.blockers(LISTED_BLOCKERS):
        recipient = _named(roster, viewer, Wait(number, False, 0))
        for each in switch.waits(number).blocks:
            publisher = _named(roster, viewer, each)
            found.append(
                {"recipient": recipient["id"], "recipient_uid": recipient["uid"], "publisher": publisher.pop("id")}
                | {"publisher_uid": publisher.pop("uid")}
                | publisher
            )
    return found


def when_full(policy: Policy, recipient: Client, publisher: Client) -> str:
    """Return the hard mode that applies to a publisher's message when a recipient's queue is full, unless the publisher is paced."""
    is_same = recipient.credentials.uid == publisher.credentials.uid
    if recipient.hard == "block" and not is_same and not policy.may_block_others(recipient.credentials):
        return "discard"
    return recipient.hard


def _named(roster: Roster, viewer: Client, wait: Wait, *, sees_all: bool = False) -> dict[str, object]:
    """Return a wait. The other connection and its user are None if *viewer* may not see them."""
    members: dict[str, object] = {"paced": wait.is_paced, "ms": wait.ms}
    if wait.connection not in roster:
        return {"id": None, "uid": None, **members}
    other = roster[wait.connection]
    if not sees_all and not roster.may_see(viewer, other):
        return {"id": None, "uid": None, **members}
    return {"id": wait.connection, "uid": other.credentials.uid, **members}
