"""Replies to control messages: one method for each message. Spec: sbus-protocol(7) §6.

While a reply is made no message is routed, so each reply is limited in size and in work. Lists are split into pages.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields

from sbus.protocol import __version__, controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import connection_address
from sbus.protocol.packets import BATCH_HEAD, Control, parse_batch
from sbus_programs.config.quantities import NO_BOUND
from sbus_programs.config.settings import Quotas
from sbus_programs.systemd.processes import Placement
from sbusd.broker.access import AccessRules
from sbusd.broker.change_log import ChangeLog
from sbusd.broker.connection_settings import described
from sbusd.broker.connection_times import date_of
from sbusd.broker.events import encode_json
from sbusd.broker.explanation import KnownUsers, explain
from sbusd.broker.log import BusLog
from sbusd.broker.quota_usage import UserUsage
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.recipients import Recipients, blocking_of, parse_start, waits_now
from sbusd.broker.request_bounds import check_key, check_reply
from sbusd.broker.roster import Client, Roster
from sbusd.broker.taps import subscription_page
from sbusd.broker.totals import UserTotals
from sbusd.dataplane.contract import Switch
from sbusd.dataplane.counters import UserTraffic

# A reply takes at most four times ``turn_time``, as measured with 300,000 patterns of 10,000 connections.

PAGE_CLIENTS = 40
"""Clients in one reply: about 12 kB of JSON, made in a third of a millisecond."""

PAGE_USERS = 20
"""Users in one reply. Each can have some hundred connections."""

FEATURES = (
    "batch",
    "conn",
    "connections",
    "deliver",
    "echo",
    "errors",
    "explain",
    "fair",
    "group",
    "lost",
    "members",
    "modes",
    "name",
    "pace",
    "ping",
    "presence",
    "receipt",
    "recipients",
    "secret",
    "sender",
    "stats",
    "subscriptions",
    "tap",
    "totals",
    "trace",
    "units",
    "users",
    "vouch",
    "whoami",
)

PAGE_TOTALS = 40
"""Users in one reply about totals."""

_RESERVED_FEATURES = frozenset({"conn", "presence", "secret"})
"""Features that a bus without reserved keys does not have."""

UNKNOWN_PLACE: dict[str, object] = dict.fromkeys(Placement().members())
"""The members of a client whose unit is not known."""

_LIMITS = tuple(each.name for each in fields(Quotas))


class ControlMessages:
    """The replies of one bus. *counts* are the broker's counters."""

    def __init__(
        self, switch: Switch, roster: Roster, quotas: UserQuotas, access: AccessRules, *, journal: BusLog, counts: Counter[str]
    ) -> None:
        self._switch = switch
        self._roster = roster
        self._quotas = quotas
        self._access = access
        self._keyspace = access.keyspace
        self._journal = journal
        self._counts = counts
        self._change_log = ChangeLog()
        self.recipients = Recipients(switch, roster, access, PAGE_CLIENTS)
        self.started = time.monotonic()
        """Start time of the bus, in seconds of the monotonic clock. A restart that keeps the connections does not change it."""
        self.counted_since = round(time.time(), 3)
        """When the counters began, in seconds since 1970. A restart that restores them does not change it."""
        self._by_key: dict[bytes, Callable[[Client, bytes], bytes]] = {
            controls.WHOAMI: self._whoami,
            controls.MEMBERS: self._members,
            controls.FEATURES: self._features,
            controls.PING: self._ping,
            controls.STATS: self._stats,
            controls.CONNECTIONS: self._connections,
            controls.USERS: self._users,
            controls.TOTALS: self._totals,
            controls.SUBSCRIPTIONS: self._subscriptions,
            controls.TRACE: self._trace,
            controls.EXPLAIN: self._explain,
            controls.BATCH: self._batch,
        }
        if self._keyspace.namespaces:
            self._by_key[controls.ADDRESS] = self._address

    def set_change_log(self, change_log: ChangeLog) -> None:
        """Include the counters of *change_log* in the statistics."""
        self._change_log = change_log

    def reply(self, client: Client, packet: Control) -> bytes | None:
        """Return the payload of the reply to *packet*, or None if this bus does not know the control message.

        Raises:
            ProtocolError: EINVAL, the payload is invalid; EPERM, the client may not send this request; EMSGSIZE, a key is too long, or
                the reply would be.
        """
        handler = self._by_key.get(packet.key)
        if handler is None:
            return None
        reply = handler(client, packet.payload or b"")
        return reply if packet.key == controls.PING else check_reply(reply)

    def _whoami(self, client: Client, _payload: bytes) -> bytes:
        """Return the client's credentials, which begin its private keys."""
        return client.credentials.key(self._keyspace.prefix)

    def _address(self, client: Client, _payload: bytes) -> bytes:
        """Return the client's address."""
        return connection_address(client.connection)

    def _features(self, _client: Client, _payload: bytes) -> bytes:
        """Return the features of this bus, one name per line."""
        own = FEATURES if self._keyspace.namespaces else sorted(set(FEATURES) - _RESERVED_FEATURES)
        return "\n".join(own).encode()

    def _ping(self, _client: Client, payload: bytes) -> bytes:
        """Return the token. All earlier packets of the client have been routed."""
        return payload

    def _batch(self, _client: Client, payload: bytes) -> bytes:
        """Raise ProtocolError (EINVAL) with the fault of a batch. The switch itself splits well-formed batches."""
        for _ in parse_batch(BATCH_HEAD + payload):
            continue
        raise AssertionError("a well-formed batch has come to the control plane")

    def _stats(self, client: Client, _payload: bytes) -> bytes:
        """Return the counters of the bus to an owner or a user with the right ``stats``, and to other clients their own."""
        if not self._reads_statistics(client):
            return encode_json({"scope": "connection", "version": __version__, "connection": self._describe(client, client)})
        return encode_json(
            {
                "scope": "bus",
                "version": __version__,
                "switch": self._switch.kind,
                "uptime_seconds": round(time.monotonic() - self.started, 3),
                "counted_since": self.counted_since,
                "counters": self._switch.counters()._asdict(),
                "control": {**self._counts, "users_forgotten_early": self._quotas.absent.forgotten_early, **self._change_log.counts()},
                "log": self._journal.counters._asdict(),
                "waits": waits_now(self._switch, self._roster, client),
            }
        )

    def _reads_statistics(self, client: Client) -> bool:
        """Return whether a client may read the counters of the bus and of all users."""
        return self._roster.is_owner(client) or self._access.policy.may_read_statistics(client.credentials)

    def _connections(self, client: Client, payload: bytes) -> bytes:
        """Return a page of the clients that this client may see."""
        policy, who = self._access.policy, client.credentials
        # A tap shows all of this, except the age of a connection.
        sees_all = policy.may_see_presence(who) or policy.may_tap(who)
        page = self._roster.page(client, parse_start(payload), PAGE_CLIENTS, sees_all=sees_all)
        return encode_json(
            {
                "connections": [self._describe(client, each, sees_all=sees_all) for each in page.clients],
                "next": page.next,
                "hidden": self._roster.hidden_from(client, sees_all=sees_all),
            }
        )

    def _describe(self, viewer: Client, client: Client, *, sees_all: bool = False) -> dict[str, object]:
        """Return the properties of a client that *viewer* may see."""
        who = client.credentials
        return {
            "id": client.connection,
            "name": client.name,
            "pid": who.pid,
            "uid": who.uid,
            "gid": who.gid,
            **(UNKNOWN_PLACE if client.placement is None else client.placement.members()),
            "since": round(date_of(client.since), 3),
            "inode": client.inode,
            "subscriptions": client.subscriptions,
            **described(self._switch.settings(client.connection)),
            "tap": client.tap is not None,
            **self._switch.connection_counters(client.connection)._asdict(),
            **blocking_of(self._switch, self._roster, viewer, client.connection, sees_all=sees_all),
        }

    def _users(self, client: Client, payload: bytes) -> bytes:
        """Return a page of the users that this client may see: all if it may read the statistics, otherwise its own."""
        only = None if self._reads_statistics(client) else self._quotas[client.connection].uid
        # The first page starts with user 0.
        after = parse_start(payload, "user") if payload else -1
        users, following = self._quotas.page(only, after, PAGE_USERS)
        hidden = 0 if only is None else len(self._quotas) - 1
        return encode_json({"users": [self._describe_user(each) for each in users], "next": following, "hidden": hidden})

    def _totals(self, client: Client, payload: bytes) -> bytes:
        """Return a page of the totals of the users that this client may see, and in the first page those of forgotten users."""
        sees_all = self._reads_statistics(client)
        after = parse_start(payload, "user") if payload else -1
        table = self._quotas.totals
        other = None
        if sees_all:
            found = heapq.nsmallest(PAGE_TOTALS + 1, (uid for uid in table.by_uid if uid > after))
            page = found[:PAGE_TOTALS]
            live, unlisted = self._switch.traffic(page if payload else list(table.by_uid))
            if not payload:
                other = _describe_totals(table.other, unlisted)
        else:
            # Only the client's own connections are visited: many requests must not take time in proportion to those of all users.
            own = client.credentials.uid
            found = page = [own] if own > after and own in table.by_uid else []
            connections = self._quotas[client.connection].connections
            live = {own: self._switch.traffic_of([each for each in connections if self._roster[each].credentials.uid == own])}
        return encode_json(
            {
                "users": [{"uid": uid, **_describe_totals(table.by_uid[uid], live[uid])} for uid in page],
                "other": other,
                "next": page[-1] if len(found) > PAGE_TOTALS else None,
                "counted_since": self.counted_since,
            }
        )

    def _describe_user(self, user: UserUsage) -> dict[str, object]:
        """Return the usage and the limits of a user."""
        return {
            "uid": user.uid,
            "connections": len(user.connections),
            "descriptors": user.descriptors,
            "subscriptions": user.subscriptions,
            "pattern_bytes": user.pattern_bytes,
            "state_bytes": self._quotas.state_usage.of(user.uid),
            **self._switch.user_counters(user.uid)._asdict(),
            **self._switch.user_waits(user.uid)._asdict(),
            "limits": {name: limit if (limit := getattr(user.limits, name)) < NO_BOUND else None for name in _LIMITS},
            "refused": dict(user.refused),
        }

    def _subscriptions(self, client: Client, payload: bytes) -> bytes:
        """Return a page of the subscriptions of all clients, if the client may see them."""
        policy, who = self._access.policy, client.credentials
        sees_secrets = self._roster.is_owner(client) or policy.may_tap(who)
        if not (sees_secrets or policy.may_see_presence(who)):
            raise ProtocolError(ErrorCode.EPERM, "only owners and users with the presence or tap right can list all subscriptions")
        hides_from = who.uid if not sees_secrets and self._keyspace.namespaces else None
        return encode_json(subscription_page(self._switch, self._roster, self._keyspace.prefix, payload, hides_from))

    def _members(self, client: Client, payload: bytes) -> bytes:
        """Return a page of the recipients of a key."""
        key, _, after = payload.partition(b"\0")
        check_key(key, self._access.key_bytes)
        return encode_json(self.recipients.members(client, key, after))

    def _trace(self, client: Client, payload: bytes) -> bytes:
        """Return a page of the visible clients: the recipients of a key, and the others with the reason."""
        key, _, after = payload.partition(b"\0")
        check_key(key, self._access.key_bytes)
        return encode_json(self.recipients.trace(client, key, after))

    def _explain(self, client: Client, payload: bytes) -> bytes:
        """Return whether a user may publish or subscribe, and why."""
        is_owner = self._roster.is_owner(client)
        known = KnownUsers(self._quotas.is_owner, self._quotas.latest_credentials)
        return encode_json(explain(self._access, client.credentials, payload, is_owner=is_owner, known=known))


def _describe_totals(totals: UserTotals, live: UserTraffic) -> dict[str, object]:
    """Return what a user has done: its connections that have ended, and *live* ones."""
    sums = {name: ended + lasting for name, ended, lasting in zip(UserTraffic._fields, totals.traffic, live, strict=True)}
    return {**sums, "quota_refusals": dict(totals.refused)}
