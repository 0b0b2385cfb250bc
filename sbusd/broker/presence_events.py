"""What happens to connections, told to those who listen and may know of it. Spec: sbus-protocol(7) §5, events.

Each event is told after what it tells of, at once: so events come in the order in which things happened, and what the bus answers
after an event agrees with it. Without a listener an event costs a comparison.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable

from sbusd.broker.json_encoding import describe, spell
from sbusd.broker.roster import Client
from sbusd.broker.tap_events import Tapping
from sbusd.dataplane.contract import Sight, Switch
from sbusd.protocol.credentials import Credentials
from sbusd.protocol.keys import EVENT_HEAD, SECRET_HEAD, KeySpace
from sbusd.protocol.packets import publish_packet


class Presence:
    """The events of one bus. *own* are the credentials of the bus itself; *clock* is nanoseconds since 1970, for tests."""

    def __init__(
        self, switch: Switch, keyspace: KeySpace, tapping: Tapping, own: Credentials, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._switch = switch
        self._tapping = tapping
        self._prefix = keyspace.prefix
        self._own = own.key(keyspace.prefix)
        self._is_reserved = bool(keyspace.namespaces)
        self._clock = clock
        self.listening: Counter[int] = Counter()
        """Stored patterns for events, by connection; none is 0."""

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens, or taps the bus."""
        return bool(self.listening) or self._switch.is_tapped()

    def connected(self, client: Client) -> None:
        """Tell that a client has come."""
        if self.is_heard:
            self._tell("connect", client, Sight.OWN)

    def ended(self, client: Client, abandoned: int = 0) -> None:
        """Tell that a client has gone; the switch has forgotten it. Taps alone are told how many packets still waited for it."""
        self.listening.pop(client.connection, None)
        if self.is_heard:
            self._tell("disconnect", client, Sight.OWN, count=abandoned)

    def subscribed(self, client: Client, pattern: bytes) -> None:
        """Tell of an instance of *pattern* that was just stored, if it is the first."""
        if self._is_about_events(pattern):
            self.listening[client.connection] += 1
        if self.is_heard and self._switch.instances(client.connection, pattern) == 1:
            self._tell("subscribe", client, _sight(pattern), pattern)

    def resume(self, connection: int, pattern: bytes, count: int) -> None:
        """Take note of instances of *pattern* that outlived a restart; there is nothing to tell."""
        if self._is_about_events(pattern):
            self.listening[connection] += count

    def unsubscribed(self, client: Client, pattern: bytes) -> None:
        """Tell of an instance of *pattern* that was just removed, if it was the last."""
        if self._is_about_events(pattern):
            self.listening[client.connection] -= 1
            if not self.listening[client.connection]:
                del self.listening[client.connection]
        if self.is_heard and not self._switch.instances(client.connection, pattern):
            self._tell("unsubscribe", client, _sight(pattern), pattern)

    def forgotten(self, client: Client, pattern: bytes) -> None:
        """Tell of a *pattern* that was stored before a restart and is not any more, in no instance."""
        if self.is_heard:
            self._tell("unsubscribe", client, _sight(pattern), pattern)

    def _is_about_events(self, pattern: bytes) -> bool:
        """Return whether a pattern takes events."""
        return self._is_reserved and pattern.startswith(EVENT_HEAD)

    def _tell(self, kind: str, client: Client, sight: Sight, pattern: bytes | None = None, **more: int) -> None:
        """Publish an event to those who may know of it; *more* is for taps."""
        key = b"%b%b/%d" % (EVENT_HEAD, kind.encode(), client.connection)
        facts = describe(client.connection, client.credentials, self._prefix, self._clock())
        if pattern is not None:
            key += b"/" + pattern
            facts |= spell("pattern", pattern)
        if self.listening:
            payload = json.dumps(facts, separators=(",", ":")).encode()
            self._switch.announce(publish_packet(key, payload), sight=sight, uid=client.credentials.uid, cred=self._own)
        self._tapping.event(kind, key, client.credentials.uid, facts | more)


def _sight(pattern: bytes) -> Sight:
    """Return what it takes to be told of another user's subscription: a secret is for nobody but its user and the owners."""
    return Sight.ALL if pattern.startswith(SECRET_HEAD) else Sight.PRESENCE
