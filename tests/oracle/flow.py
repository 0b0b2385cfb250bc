"""Flow control of the model: which publishers wait for which recipients, and for how long. Rule 5 of sbusd/dataplane/contract.py."""

from __future__ import annotations

from collections import Counter

from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import UNREAD_BYTES, Sight, SoftMode
from tests.oracle.connection import Connection, Hold
from tests.oracle.fairness import SECOND
from tests.oracle.link import Ready
from tests.oracle.turns import Clock

RECORD_BYTES = 8
"""The switch's own memory for each packet that is read and not handled yet."""


def nanoseconds(seconds: float) -> int:
    """Return a time of the configuration in the unit of the clock."""
    return round(seconds * SECOND)


class FlowControl:
    """Blocks publishers, and resumes them. *connections* are those of the model, by number."""

    def __init__(self, limits: LimitSettings, clock: Clock, connections: dict[int, Connection], count: Counter[str]) -> None:
        self._limits = limits
        self._clock = clock
        self._connections = connections
        self._count = count
        self.blocking: list[Connection] = []
        """Recipients that block, in the order in which the switch looks at them: the last one takes the place of one that stops."""

    # -- recipients that block

    def may_block(self, publisher: Connection, recipient: Connection) -> bool:
        """Return whether the recipient's own mode may block the publisher."""
        uid = publisher.uid
        return uid is not None and not recipient.has_fallen_back and (recipient.blocks_others or uid == recipient.uid)

    def may_pace(self, publisher: Connection, recipient: Connection, *, is_secret: bool) -> bool:
        """Return whether a paced publisher may wait for the recipient. For those of another user it waits a part of each second."""
        if not publisher.is_paced or recipient.has_fallen_back or recipient.uid is None or publisher.uid is None:
            return False
        if recipient.uid == publisher.uid:
            return True
        # The wait would reveal that the private key has a subscriber.
        return (not is_secret or publisher.sight >= Sight.ALL) and self._hold_of(publisher, recipient).has_time()

    def block(self, recipient: Connection, publisher: Connection, *, is_paced: bool) -> None:
        """Stop reading the publisher until the recipient has drained."""
        if publisher.number in recipient.blocked:
            return
        recipient.blocked[publisher.number] = is_paced
        if hold := self._hold(recipient, publisher.number):
            hold.begin()
        if recipient.blocking_since is None:
            recipient.blocking_since = self._clock.now
            self.blocking.append(recipient)
            if not recipient.progress_at or recipient.progress_mark != recipient.out.delivered_packets:
                self._note_progress(recipient)
        self._count["blocks"] += 1
        publisher.blockers += 1
        publisher.update_watch()

    def unblock_all(self, recipient: Connection) -> None:
        """Resume every publisher that waits for the recipient."""
        for number in list(recipient.blocked):
            self._unblock(recipient, number)

    def after_send(self, recipient: Connection) -> None:
        """Note progress of a recipient, and resume the publishers for which it has drained enough."""
        if recipient.blocking_since is None and not recipient.has_fallen_back:
            return
        has_moved = recipient.out.delivered_packets != recipient.progress_mark
        if has_moved and not recipient.has_fallen_back:
            self._note_progress(recipient)
        if has_moved and recipient.out.is_below(0 if recipient.out.soft is SoftMode.BLOCK else self._limits.low_water):
            recipient.has_fallen_back = False
        for number, is_paced in list(recipient.blocked.items()):
            publisher = self._connections.get(number)
            if publisher is None or recipient.out.may_resume(publisher.payer, self._limits.low_water, is_paced=is_paced):
                self._unblock(recipient, number)

    def is_late(self, recipient: Connection) -> bool:
        """Return whether the recipient has blocked publishers for too long, or for long while it took nothing."""
        since = recipient.blocking_since
        return since is not None and self._clock.now > min(since + nanoseconds(self._limits.block_timeout), self._idle_until(recipient))

    def is_idle(self, recipient: Connection) -> bool:
        """Return whether the recipient blocks publishers and, as far as is known, has taken nothing for too long."""
        return recipient.blocking_since is not None and self._clock.now > self._idle_until(recipient)

    def fall_back(self, recipient: Connection) -> None:
        """Let the recipient discard instead of blocking, until its queue has drained."""
        self._count["fallbacks"] += 1
        recipient.has_fallen_back = True
        recipient.progress_mark = recipient.out.delivered_packets
        self.unblock_all(recipient)

    def end_holds(self, recipient: Connection) -> None:
        """Resume paced publishers that have waited for another user's recipients for as long as they may."""
        for number in list(recipient.blocked):
            hold = self._hold(recipient, number)
            if hold is not None and hold.is_over():
                self._unblock(recipient, number)

    def _unblock(self, recipient: Connection, number: int) -> None:
        """Resume one publisher."""
        if hold := self._hold(recipient, number):
            hold.end()
        del recipient.blocked[number]
        if number in self._connections:
            self._resume(self._connections[number])
        if not recipient.blocked:
            recipient.blocking_since = None
            place, last = self.blocking.index(recipient), self.blocking.pop()
            if last is not recipient:
                self.blocking[place] = last

    def _resume(self, publisher: Connection) -> None:
        """Remove one of the reasons not to read a connection."""
        publisher.blockers -= 1
        publisher.update_watch()

    def _hold(self, recipient: Connection, number: int) -> Hold | None:
        """Return what bounds the wait of a publisher for a recipient, if anything does."""
        publisher, uid = self._connections.get(number), recipient.uid
        if publisher is None or uid is None or not recipient.blocked[number] or publisher.uid == uid:
            return None
        return self._hold_of(publisher, recipient)

    def _hold_of(self, publisher: Connection, recipient: Connection) -> Hold:
        """Return how long the recipients of the user that is charged for *recipient* have blocked a publisher."""
        assert recipient.payer is not None
        return publisher.holds.setdefault(recipient.payer, Hold(self._clock, nanoseconds(self._limits.pace_limit)))

    def _note_progress(self, recipient: Connection) -> None:
        """Note that the recipient has taken something."""
        recipient.progress_mark = recipient.out.delivered_packets
        recipient.progress_at = self._clock.now

    def _idle_until(self, recipient: Connection) -> int:
        """Return until when a recipient that blocks publishers may take nothing."""
        return recipient.progress_at + nanoseconds(self._limits.progress_timeout)

    # -- what is read and not handled yet

    def charge_unread(self, connection: Connection) -> None:
        """Charge the connection's user with what is not handled yet. A batch is charged with its whole length until its end."""
        account = connection.out.account
        if account is None:
            return
        size = sum(RECORD_BYTES + len(each.data) for each in connection.unread)
        account.unread += size - connection.unread_bytes
        connection.unread_bytes = size
        if account.unread < UNREAD_BYTES:
            for number in sorted(account.held_up & self._connections.keys()):
                held_up = self._connections[number]
                held_up.is_held_up, held_up.is_watched = False, True
                self._resume(held_up)
            account.held_up.clear()

    def must_wait(self, connection: Connection, ready: Ready) -> bool:
        """Return whether the connection is not read, because its user's connections have too much unread."""
        account = connection.out.account
        if account is None or account.unread < UNREAD_BYTES:
            return False
        if not connection.is_held_up:
            account.held_up.add(connection.number)
            connection.is_held_up = True
            connection.blockers += 1
        connection.is_watched &= not ready.is_hung_up
        connection.update_watch()
        return True
