"""The recipients of a key, ``!/bus/members`` and ``!/bus/trace``, and those that block publishers. Spec: sbus-protocol(7) §6 and §7.

While a reply is made no message is routed, so each page is limited in size and in work.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice

from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import SECRET_HEAD
from sbus.protocol.memberships import split_stored
from sbusd.broker.access import AccessRules
from sbusd.broker.events import key_text
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.contract import HardMode, Switch
from sbusd.dataplane.counters import Wait

PAGE_MEMBERS = 100
"""Members in one reply: with their credentials about 6 kB of JSON."""

MAX_TRACED_PATTERNS = 400
"""A client with more patterns is reported as a recipient without them, because listing them would take too long."""

TRACED_BYTES = 16 << 10
"""Cost of the comparisons for one reply, in bytes of keys and patterns. Beyond it the page ends, and the other clients follow on the next.

Without this limit, one request about many connections with deep patterns could stop the bus for minutes.
"""

PATTERN_COST = 40
"""Part of that cost for a pattern that does not begin like the key. A 64th of its length is added."""

COMPARISON_COST = 128
"""Part of that cost for one comparison of a pattern with a key. Their lengths are added."""

_PATTERNS_AT_ONCE = 16

LISTED_BLOCKERS = 20
"""Maximum number of blocking recipients in one reply: with four publishers each, about 5 kB of JSON."""


class Recipients:
    """The queries of one bus for the recipients of a key. *page_clients* is the maximum number of clients on a page of a trace."""

    def __init__(self, switch: Switch, roster: Roster, access: AccessRules, page_clients: int) -> None:
        self._switch = switch
        self._roster = roster
        self._access = access
        self._keyspace = access.keyspace
        self._page_clients = page_clients

    def may_know(self, client: Client, key: bytes) -> bool:
        """Return whether a client that may publish to *key* may know its recipients. Those of a private key are private too."""
        is_secret = key.startswith(SECRET_HEAD) and self._keyspace.namespace(key) is not None
        return not is_secret or self._roster.is_owner(client) or self._access.opens(key, client.credentials)

    def members(self, client: Client, key: bytes, after: bytes) -> dict[str, object]:
        """Return a page of the recipients of *key* with numbers above *after*.

        Raises:
            ProtocolError: EPERM or EMSGSIZE, the client may not know them; EINVAL, *after* is not a number.
        """
        self._check_access(client, key)
        start = parse_start(after)
        numbers = self._switch.recipients(key)
        later = (numbers[place] for place in range(bisect_right(numbers, start), len(numbers)))
        found = list(islice((number for number in later if number in self._roster), PAGE_MEMBERS + 1))
        page = [self._roster[number] for number in found[:PAGE_MEMBERS]]
        return {
            "members": [{"id": each.connection, "cred": each.credentials.key(self._keyspace.prefix).decode()} for each in page],
            "next": page[-1].connection if len(found) > PAGE_MEMBERS else None,
        }

    def _check_access(self, client: Client, key: bytes) -> None:
        """Raise ProtocolError (EPERM, EMSGSIZE) if a client may not know the recipients of *key*."""
        verdict = self._access.publication(key, client.credentials)
        if verdict.code is not None and not (verdict.rule is not None and self._roster.is_owner(client)):
            raise ProtocolError(verdict.code, f"clients that cannot publish to a key cannot list its members: {verdict.reason}")
        if not self.may_know(client, key):
            raise ProtocolError(ErrorCode.EPERM, "only clients whose credentials match a private key can list its members")

    def trace(self, client: Client, key: bytes, after: bytes) -> dict[str, object]:
        """Return a page of the visible clients with numbers above *after*: the recipients of *key*, and the others with the reason.

        Raises:
            ProtocolError: EINVAL, *after* is not a number.
        """
        start = parse_start(after)
        verdict = self._access.publication(key, client.credentials)
        # If a rule denies publishing to this client only, the recipients are still of interest.
        publishable = verdict.is_allowed or verdict.rule is not None
        reached = self._switch.recipients(key) if publishable else []
        page = self._roster.page(client, start, self._page_clients)
        recipients: list[dict[str, object]] = []
        others: list[dict[str, object]] = []
        allowance, following = TRACED_BYTES, page.next
        for number, each in enumerate(page.clients):
            who: dict[str, object] = {"id": each.connection, "pid": each.credentials.pid, "uid": each.credentials.uid}
            place = bisect_left(reached, each.connection)
            if place < len(reached) and reached[place] == each.connection:
                patterns, allowance = self._matching(each, key, allowance)
                if allowance < 0 and number:
                    following = page.clients[number - 1].connection
                    break
                recipients.append(who | {"patterns": patterns} | self._blocking(client, each))
            else:
                others.append(who | {"reason": self._why_not(each, key, publishable=publishable)})
        return {
            "key": key_text(key),
            "publishable": verdict.is_allowed,
            "reason": verdict.reason,
            "recipients": recipients,
            "others": others,
            "next": following,
            "hidden": self._roster.hidden_from(client),
        }

    def _blocking(self, publisher: Client, recipient: Client) -> dict[str, object]:
        """Return what happens to a publisher when a recipient's queue is full, and the publishers that the recipient blocks now."""
        found = blocking_of(self._switch, self._roster, publisher, recipient.connection)
        now = {name: found[name] for name in ("blocked_others_ms", "blocks_count", "blocks")}
        return {"when_full": self._mode_when_full(recipient, publisher).name.lower()} | now

    def _mode_when_full(self, recipient: Client, publisher: Client) -> HardMode:
        """Return what happens to a publisher's message when a recipient's queue is full, unless the publisher is paced."""
        mode = HardMode(self._switch.settings(recipient.connection).hard)
        is_same = recipient.credentials.uid == publisher.credentials.uid
        if mode is HardMode.BLOCK and not is_same and not self._access.policy.may_block_others(recipient.credentials):
            return HardMode.DISCARD
        return mode

    def _matching(self, client: Client, key: bytes, allowance: int) -> tuple[list[str], int]:
        """Return the client's patterns that match *key*, and the rest of *allowance*; no patterns and -1 if that is not enough."""
        if client.subscriptions > MAX_TRACED_PATTERNS:
            return [], allowance
        found: list[str] = []
        last: bytes | None = None
        while patterns := self._switch.patterns_after(client.connection, last, _PATTERNS_AT_ONCE):
            last = patterns[-1]
            for pattern in patterns:
                allowance -= PATTERN_COST + (len(pattern) >> 6)
                plain, group = split_stored(pattern)
                is_alike = key.startswith(plain.partition(b"*")[0])
                if is_alike:
                    allowance -= COMPARISON_COST + len(pattern) + len(key)
                if allowance < 0:
                    return [], -1
                if is_alike and self._keyspace.matches(plain, key):
                    found.append(key_text(plain) + (f" in the group {group.decode()}" if group else ""))
        return found, allowance

    def _why_not(self, client: Client, key: bytes, *, publishable: bool) -> str:
        """Return the reason why a client is not a recipient of *key*."""
        if not publishable:
            return "no client can publish to this key"
        if not client.subscriptions:
            return "the client has no subscription"
        if self._keyspace.namespace(key) is not None:
            return f"none of its patterns ({client.subscriptions}) spells out this reserved key; wildcards do not match reserved keys"
        return f"none of its patterns ({client.subscriptions}) matches the key"


def parse_start(payload: bytes, what: str = "connection") -> int:
    """Return the number after which a page starts; an empty payload is 0. Raises ProtocolError (EINVAL) for anything else."""
    if not payload:
        return 0
    if not payload.isdigit() or len(payload) > 19:
        raise ProtocolError(ErrorCode.EINVAL, f"the page to start after must be the number of a {what}")
    return int(payload)


def blocking_of(switch: Switch, roster: Roster, viewer: Client, connection: int, *, sees_all: bool = False) -> dict[str, object]:
    """Return the connections that block *connection*, and those that it blocks, as *viewer* may see them; *sees_all*: all of them.

    Each client may know that it is blocked or blocks others, and for how long, because it could measure that. The other connection is shown
    only to clients that may see it anyway.
    """
    waits = switch.waits(connection)
    return {
        "pace": waits.is_paced,
        "blocked_ms": waits.blocked_ms,
        "blocked_by_count": waits.blocked_by_count,
        "blocked_by": [_wait(roster, viewer, each, sees_all=sees_all) for each in waits.blocked_by],
        "blocked_others_ms": waits.blocked_others_ms,
        "blocks_count": waits.blocks_count,
        "blocks": [_wait(roster, viewer, each, sees_all=sees_all) for each in waits.blocks],
    }


def waits_now(switch: Switch, roster: Roster, viewer: Client) -> list[dict[str, object]]:
    """Return the current waits, at most those for :data:`LISTED_BLOCKERS` recipients, as *viewer* may see them, grouped by recipient."""
    found = []
    for number in switch.blockers(LISTED_BLOCKERS):
        recipient = _wait(roster, viewer, Wait(number, False, 0))
        for each in switch.waits(number).blocks:
            publisher = _wait(roster, viewer, each)
            found.append(
                {"recipient": recipient["id"], "recipient_uid": recipient["uid"], "publisher": publisher.pop("id")}
                | {"publisher_uid": publisher.pop("uid")}
                | publisher
            )
    return found


def _wait(roster: Roster, viewer: Client, wait: Wait, *, sees_all: bool = False) -> dict[str, object]:
    """Return a wait. The other connection and its user are None if *viewer* may not see them."""
    members: dict[str, object] = {"paced": wait.is_paced, "ms": wait.ms}
    if wait.connection not in roster:
        return {"id": None, "uid": None, **members}
    other = roster[wait.connection]
    if not sees_all and not roster.may_see(viewer, other):
        return {"id": None, "uid": None, **members}
    return {"id": wait.connection, "uid": other.credentials.uid, **members}
