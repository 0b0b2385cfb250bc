"""Who blocks whom, as the bus tells it. Spec: sbus-protocol(7) §6 and §7.

A client learns that it waits, or is waited for, and for how long: it could measure that. Which connection of another user that is, only
those learn who may see that connection anyway.
"""

from __future__ import annotations

from sbusd.broker.policy import Policy
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.blocking import Wait
from sbusd.dataplane.contract import Switch

LISTED_BLOCKERS = 20
"""Recipients that are named in one answer as blocking publishers; with four publishers each about 5 kB of JSON."""


def of_connection(switch: Switch, roster: Roster, viewer: Client, connection: int, *, sees_all: bool = False) -> dict[str, object]:
    """Return whom *connection* waits for and who waits for it, as *viewer* may know it; *sees_all*: of each connection."""
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
    """Return the waits that there are now, or some of them, as *viewer* may know them: each publisher below its recipient."""
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
    """Return what becomes of a publisher's message that a recipient's queue does not take, unless the publisher is paced."""
    is_same = recipient.credentials.uid == publisher.credentials.uid
    if recipient.hard == "block" and not is_same and not policy.may_block_others(recipient.credentials):
        return "discard"
    return recipient.hard


def _named(roster: Roster, viewer: Client, wait: Wait, *, sees_all: bool = False) -> dict[str, object]:
    """Return a wait; without the other connection and its user, where *viewer* may not know those."""
    told: dict[str, object] = {"paced": wait.is_paced, "ms": wait.ms}
    if wait.connection not in roster:
        return {"id": None, "uid": None, **told}
    other = roster[wait.connection]
    if not sees_all and not roster.may_see(viewer, other):
        return {"id": None, "uid": None, **told}
    return {"id": wait.connection, "uid": other.credentials.uid, **told}
