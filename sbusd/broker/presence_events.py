"""Events about connections and subscriptions, for clients that may see them. Spec: sbus-protocol(7) §5, events.

An event is published directly after the change that it reports. So events have the order of the changes, and later replies of the bus
agree with them. The caller checks first whether there is a listener or a tap: see :mod:`sbusd.broker.fast_path`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from sbusd.broker.json_encoding import connection_members, encode, key_members
from sbusd.broker.roster import Client
from sbusd.broker.tap_events import TapEvents
from sbusd.dataplane.contract import Sight, Switch
from sbusd.protocol.credentials import Credentials
from sbusd.protocol.keys import EVENT_HEAD, SECRET_HEAD, KeySpace
from sbusd.protocol.packets import publish_packet


class PresenceEvents:
    """The events of one bus. *own* are the credentials of the bus itself; *clock* returns nanoseconds since 1970, for tests."""

    def __init__(
        self, switch: Switch, keyspace: KeySpace, tap_events: TapEvents, own: Credentials, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._switch = switch
        self._tap_events = tap_events
        self._prefix = keyspace.prefix
        self._own = own.key(keyspace.prefix)
        self._has_reserved_keys = bool(keyspace.namespaces)
        self._clock = clock
        self.listening: Counter[int] = Counter()
        """Number of stored patterns for events, by connection. A count of 0 is removed."""

    def connected(self, client: Client) -> None:
        """Publish that a client has connected."""
        self._publish("connect", client, Sight.OWN)

    def disconnected(self, client: Client, abandoned: int = 0) -> None:
        """Publish that a client has disconnected; the switch has forgotten it. Only taps learn that *abandoned* packets were pending."""
        self.listening.pop(client.connection, None)
        self._publish("disconnect", client, Sight.OWN, count=abandoned)

    def subscribed(self, client: Client, pattern: bytes) -> None:
        """Publish that an instance of *pattern* was stored, if it is the first."""
        if self._is_for_events(pattern):
            self.listening[client.connection] += 1
        if self._switch.instances(client.connection, pattern) == 1:
            self._publish("subscribe", client, _required_sight(pattern), pattern)

    def resume(self, connection: int, pattern: bytes, count: int) -> None:
        """Count restored instances of *pattern*, without an event."""
        if self._is_for_events(pattern):
            self.listening[connection] += count

    def unsubscribed(self, client: Client, pattern: bytes) -> None:
        """Publish that an instance of *pattern* was removed, if it was the last."""
        if self._is_for_events(pattern):
            self.listening[client.connection] -= 1
            if not self.listening[client.connection]:
                del self.listening[client.connection]
        if not self._switch.instances(client.connection, pattern):
            self._publish("unsubscribe", client, _required_sight(pattern), pattern)

    def not_restored(self, client: Client, pattern: bytes) -> None:
        """Publish that no instance of *pattern* was restored after a restart."""
        self._publish("unsubscribe", client, _required_sight(pattern), pattern)

    def _is_for_events(self, pattern: bytes) -> bool:
        """Return whether a pattern matches events."""
        return self._has_reserved_keys and pattern.startswith(EVENT_HEAD)

    def _publish(self, kind: str, client: Client, sight: Sight, pattern: bytes | None = None, **for_taps: int) -> None:
        """Publish an event to clients with at least *sight*, and to taps."""
        key = b"%b%b/%d" % (EVENT_HEAD, kind.encode(), client.connection)
        facts = connection_members(client.connection, client.credentials, self._prefix, self._clock())
        if pattern is not None:
            key += b"/" + pattern
            facts |= key_members("pattern", pattern)
        if self.listening:
            self._switch.announce(publish_packet(key, encode(facts)), sight=sight, uid=client.credentials.uid, cred=self._own)
        self._tap_events.event(kind, key, client.credentials.uid, facts | for_taps)


def _required_sight(pattern: bytes) -> Sight:
    """Return the sight that shows another user's subscription. Secret patterns are visible to their user and to owners only."""
    return Sight.ALL if pattern.startswith(SECRET_HEAD) else Sight.PRESENCE
