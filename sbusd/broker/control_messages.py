"""What the bus answers to control messages. Spec: sbus-protocol(7) §6.

Every answer is bounded in size and in the work it takes, for while one is made no message is routed: lists come in pages.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from itertools import islice

import sbusd
from sbusd.broker import blocking_report, subscription_list
from sbusd.broker.access import Acceptance
from sbusd.broker.change_log import ChangeLog
from sbusd.broker.explanation import explain
from sbusd.broker.holdings import Account
from sbusd.broker.log import BusLog
from sbusd.broker.quotas import Accounts
from sbusd.broker.roster import Client, Roster
from sbusd.config.quantities import NO_BOUND
from sbusd.config.quotas import Quotas
from sbusd.dataplane.contract import Switch
from sbusd.protocol import controls
from sbusd.protocol.batches import BATCH_HEAD, parse_batch
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import SECRET_HEAD, address_of
from sbusd.protocol.packets import Control

# An answer takes at most four times ``turn_time`` to make, as measured with 300,000 patterns of 10,000 connections.

PAGE_CLIENTS = 40
"""Clients in one answer: about 12 kB of JSON, made in a third of a millisecond."""

PAGE_USERS = 20
"""Users in one answer, who can have some hundred connections each."""

TRACED_PATTERNS = 400
"""A client with more patterns is said to be a recipient, without the patterns: even to list them would hold up the bus."""

TRACED_BYTES = 16 << 10
"""Bytes of keys and patterns that are compared for one answer: behind them it ends, and the other clients are for the next page.

Else a user with many connections that hold deep patterns could stop the bus for minutes by one question.
"""

PATTERN_COST = 40
"""Of those bytes, the cost of a pattern that does not begin as the key does; a 64th of its length is added."""

COMPARISON_COST = 128
"""Of those bytes, the cost of one comparison of a pattern with a key; their lengths are added."""

PAGE_MEMBERS = 100
"""Members in one answer: with their credentials about 6 kB of JSON."""

FEATURES = (
    "batch",
    "conn",
    "connections",
    "echo",
    "errors",
    "explain",
    "lost",
    "members",
    "modes",
    "pace",
    "ping",
    "presence",
    "receipt",
    "secret",
    "sender",
    "stats",
    "subscriptions",
    "tap",
    "trace",
    "users",
    "whoami",
)

_PATTERNS_AT_ONCE = 16

_QUOTAS = tuple(each.name for each in fields(Quotas))

_RESERVED_FEATURES = frozenset({"conn", "presence", "secret"})
"""What a bus whose keys are not reserved does not have."""


class Answers:
    """The answers of one bus, from its switch, its roster, its journal and the broker's counts."""

    def __init__(
        self, switch: Switch, roster: Roster, accounts: Accounts, acceptance: Acceptance, *, journal: BusLog, counts: Counter[str]
    ) -> None:
        self._switch = switch
        self._roster = roster
        self._accounts = accounts
        self._acceptance = acceptance
        self._keyspace = acceptance.keyspace
        self._journal = journal
        self._counts = counts
        self._change_log = ChangeLog()
        self.started = time.monotonic()
        """When the bus was started, in seconds of the monotonic clock; a restart that it outlives does not count."""
        self._by_key: dict[bytes, Callable[[Client, bytes], bytes]] = {
            controls.WHOAMI: self._whoami,
            controls.MEMBERS: self._members,
            controls.FEATURES: self._features,
            controls.PING: self._ping,
            controls.STATS: self._stats,
            controls.CONNECTIONS: self._connections,
            controls.USERS: self._users,
            controls.SUBSCRIPTIONS: self._subscriptions,
            controls.TRACE: self._trace,
            controls.EXPLAIN: self._explain,
            controls.BATCH: self._batch,
        }
        if self._keyspace.namespaces:
            self._by_key[controls.ADDRESS] = self._address

    def set_acceptance(self, acceptance: Acceptance) -> None:
        """Answer by these rules from now on; its keys are as they were."""
        self._acceptance = acceptance

    def set_change_log(self, change_log: ChangeLog) -> None:
        """Include the counters of *change_log* in the statistics."""
        self._change_log = change_log

    def to(self, client: Client, packet: Control) -> bytes | None:
        """Return the payload of the answer to *packet*, or None if it is no question that this bus knows.

        Raises:
            ProtocolError: EINVAL, the payload is not of the question's form; EPERM, the client may not ask this.
        """
        answer = self._by_key.get(packet.key)
        return None if answer is None else answer(client, packet.payload or b"")

    def _whoami(self, client: Client, _payload: bytes) -> bytes:
        """Return the client's credentials as the head of its secret keys."""
        return client.credentials.key(self._keyspace.prefix)

    def _address(self, client: Client, _payload: bytes) -> bytes:
        """Return the client's address."""
        return address_of(client.connection)

    def _members(self, client: Client, payload: bytes) -> bytes:
        """Return a page of the connections that a message with a key would reach."""
        key, _, after = payload.partition(b"\0")
        self._check_curiosity(client, key)
        start = _parse_number(after)
        numbers = self._switch.recipients(key)
        later = (numbers[place] for place in range(bisect_right(numbers, start), len(numbers)))
        found = list(islice((number for number in later if number in self._roster), PAGE_MEMBERS + 1))
        page = [self._roster[number] for number in found[:PAGE_MEMBERS]]
        return _json(
            {
                "members": [{"id": each.connection, "cred": self._cred(each)} for each in page],
                "next": page[-1].connection if len(found) > PAGE_MEMBERS else None,
            }
        )

    def _check_curiosity(self, client: Client, key: bytes) -> None:
        """Raise ProtocolError (EPERM, EMSGSIZE) if a client may not know who would get a message with *key*."""
        verdict = self._acceptance.publication(key, client.credentials)
        if verdict.code is not None and not (verdict.rule is not None and self._roster.is_owner(client)):
            raise ProtocolError(verdict.code, f"clients that cannot publish to a key cannot list its members: {verdict.reason}")
        if not self.may_know_recipients(client, key):
            raise ProtocolError(ErrorCode.EPERM, "only clients whose credentials match a secret key can list its members")

    def may_know_recipients(self, client: Client, key: bytes) -> bool:
        """Return whether a client that may publish to *key* may know who gets it: who listens to a secret key is a part of the secret."""
        is_secret = key.startswith(SECRET_HEAD) and self._keyspace.namespace(key) is not None
        return not is_secret or self._roster.is_owner(client) or self._acceptance.opens(key, client.credentials)

    def _cred(self, client: Client) -> str:
        """Return a client's credentials as it is told them itself."""
        return client.credentials.key(self._keyspace.prefix).decode()

    def _features(self, _client: Client, _payload: bytes) -> bytes:
        """Return what this bus can do, a name a line."""
        own = FEATURES if self._keyspace.namespaces else sorted(set(FEATURES) - _RESERVED_FEATURES)
        return "\n".join(own).encode()

    def _ping(self, _client: Client, payload: bytes) -> bytes:
        """Return the token: all that the client sent before has been routed."""
        return payload

    def _batch(self, _client: Client, payload: bytes) -> bytes:
        """Raise ProtocolError (EINVAL) with what is wrong with a batch: the switch takes apart those that are well-formed itself."""
        for _ in parse_batch(BATCH_HEAD + payload):
            continue
        raise AssertionError("a well-formed batch has come to the control plane")

    def _stats(self, client: Client, _payload: bytes) -> bytes:
        """Return the bus's counters to an owner, and a client's own to others."""
        if not self._roster.is_owner(client):
            return _json({"scope": "connection", "version": sbusd.__version__, "connection": self._describe(client, client)})
        return _json(
            {
                "scope": "bus",
                "version": sbusd.__version__,
                "switch": self._switch.kind,
                "uptime_seconds": round(time.monotonic() - self.started, 3),
                "counters": self._switch.counters()._asdict(),
                "control": {**self._counts, "users_forgotten_early": self._accounts.forgotten_early, **self._change_log.counts()},
                "log": self._journal.counters._asdict(),
                "waits": blocking_report.now(self._switch, self._roster, client),
            }
        )

    def _connections(self, client: Client, payload: bytes) -> bytes:
        """Return a page of the clients that this one may see."""
        policy, who = self._acceptance.policy, client.credentials
        # Who taps the bus is told all of it anyway, but not how old a connection is.
        sees_all = policy.may_see_presence(who) or policy.may_tap(who)
        page = self._roster.page(client, _parse_number(payload), PAGE_CLIENTS, sees_all=sees_all)
        return _json(
            {
                "connections": [self._describe(client, each, sees_all=sees_all) for each in page.clients],
                "next": page.next,
                "hidden": self._roster.hidden_from(client, sees_all=sees_all),
            }
        )

    def _describe(self, viewer: Client, client: Client, *, sees_all: bool = False) -> dict[str, object]:
        """Return what is known of a client, as *viewer* may know it."""
        who = client.credentials
        return {
            "id": client.connection,
            "pid": who.pid,
            "uid": who.uid,
            "gid": who.gid,
            "since": round(client.since, 3),
            "inode": client.inode,
            "subscriptions": client.subscriptions,
            "soft": client.soft,
            "hard": client.hard,
            "order": client.order,
            "sender": client.wants_senders,
            "batch": client.wants_batches,
            "tap": client.tap is not None,
            **self._switch.connection_counters(client.connection)._asdict(),
            **blocking_report.of_connection(self._switch, self._roster, viewer, client.connection, sees_all=sees_all),
        }

    def _users(self, client: Client, payload: bytes) -> bytes:
        """Return a page of the users that this client may see: all for an owner, its own for others."""
        only = None if self._roster.is_owner(client) else client.credentials.uid
        # Before the first page comes what is before user 0.
        after = _parse_number(payload, "user") if payload else -1
        users, following = self._accounts.page(only, after, PAGE_USERS)
        hidden = 0 if only is None else len(self._accounts) - 1
        return _json({"users": [self._describe_user(each) for each in users], "next": following, "hidden": hidden})

    def _subscriptions(self, client: Client, payload: bytes) -> bytes:
        """Return a page of all subscriptions, to those who are told of each new one by a tap."""
        if not (self._roster.is_owner(client) or self._acceptance.policy.may_tap(client.credentials)):
            raise ProtocolError(ErrorCode.EPERM, "only owners and users with the right tap can list all subscriptions")
        return _json(subscription_list.page(self._switch, self._roster, self._keyspace.prefix, payload))

    def _describe_user(self, account: Account) -> dict[str, object]:
        """Return what a user holds, and what it may."""
        return {
            "uid": account.uid,
            "connections": len(account.holdings),
            "descriptors": account.descriptors,
            "subscriptions": account.subscriptions,
            "pattern_bytes": account.pattern_bytes,
            "state_bytes": self._accounts.state_usage.of(account.uid),
            **self._switch.user_counters(account.uid)._asdict(),
            **self._switch.user_waits(account.uid)._asdict(),
            "limits": {name: limit if (limit := getattr(account.quotas, name)) < NO_BOUND else None for name in _QUOTAS},
            "refused": dict(account.refused),
        }

    def _trace(self, client: Client, payload: bytes) -> bytes:
        """Return who would get a message with a key, and who not and why, of a page of the clients that this one may see."""
        key, _, after = payload.partition(b"\0")
        verdict = self._acceptance.publication(key, client.credentials)
        # A rule may stop this client alone: who would get the message from another is still worth telling.
        publishable = verdict.is_allowed or verdict.rule is not None
        reached = self._switch.recipients(key) if publishable else []
        page = self._roster.page(client, _parse_number(after), PAGE_CLIENTS)
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
                recipients.append(who | {"patterns": patterns} | self._slowness(client, each))
            else:
                others.append(who | {"reason": self._why_not(each, key, publishable=publishable)})
        return _json(
            {
                "key": _text(key),
                "publishable": verdict.is_allowed,
                "reason": verdict.reason,
                "recipients": recipients,
                "others": others,
                "next": following,
                "hidden": self._roster.hidden_from(client),
            }
        )

    def _slowness(self, publisher: Client, recipient: Client) -> dict[str, object]:
        """Return what a recipient that does not keep up means for a publisher, and for whom it means that now."""
        found = blocking_report.of_connection(self._switch, self._roster, publisher, recipient.connection)
        now = {name: found[name] for name in ("blocked_others_ms", "blocks_count", "blocks")}
        return {"when_full": blocking_report.when_full(self._acceptance.policy, recipient, publisher)} | now

    def _explain(self, client: Client, payload: bytes) -> bytes:
        """Return whether a user may publish or subscribe, and why."""
        return _json(explain(self._acceptance, client.credentials, payload, is_owner=self._roster.is_owner(client)))

    def _matching(self, client: Client, key: bytes, allowance: int) -> tuple[list[str], int]:
        """Return the client's patterns that match *key*, and the rest of *allowance*; no patterns and -1 if that is not enough."""
        if client.subscriptions > TRACED_PATTERNS:
            return [], allowance
        found: list[str] = []
        last: bytes | None = None
        while patterns := self._switch.patterns_after(client.connection, last, _PATTERNS_AT_ONCE):
            last = patterns[-1]
            for pattern in patterns:
                allowance -= PATTERN_COST + (len(pattern) >> 6)
                is_alike = key.startswith(pattern.partition(b"*")[0])
                if is_alike:
                    allowance -= COMPARISON_COST + len(pattern) + len(key)
                if allowance < 0:
                    return [], -1
                if is_alike and self._keyspace.matches(pattern, key):
                    found.append(_text(pattern))
        return found, allowance

    def _why_not(self, client: Client, key: bytes, *, publishable: bool) -> str:
        """Return why a client would not get a message with *key*."""
        if not publishable:
            return "no client can publish to this key"
        if not client.subscriptions:
            return "the client has no subscription"
        if self._keyspace.namespace(key) is not None:
            return f"none of its {client.subscriptions} patterns spells out this reserved key; wildcards do not match reserved keys"
        return f"none of its {client.subscriptions} patterns matches the key"


def _json(value: dict[str, object]) -> bytes:
    """Return one JSON object without superfluous blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def _text(data: bytes) -> str:
    """Return a key as text, with escapes for what is not UTF-8."""
    return data.decode("utf-8", "backslashreplace")


def _parse_number(payload: bytes, what: str = "connection") -> int:
    """Return the number to start after; an empty payload is the start. Raises ProtocolError (EINVAL) for anything else."""
    if not payload:
        return 0
    if not payload.isdigit() or len(payload) > 19:
        raise ProtocolError(ErrorCode.EINVAL, f"the page to start after must be the number of a {what}")
    return int(payload)
