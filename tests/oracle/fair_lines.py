"""The messages of a client with the order ``FAIR`` that wait for the turns of their users."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from sbusd.dataplane.contract import FAIR_PACKETS
from tests.oracle.entries import Entry
from tests.oracle.pools import Payer


@dataclass(slots=True, eq=False)
class FairLines:
    """The lines of users, in the order of their turns."""

    by_user: OrderedDict[Payer, list[Entry]] = field(default_factory=OrderedDict)
    noticed: dict[Payer, int] = field(default_factory=dict)
    """The losses in the notice at the end of a line."""
    gaps: OrderedDict[Payer, int] = field(default_factory=OrderedDict)
    """Losses after the end of a line that are in no notice."""
    later: list[Entry] = field(default_factory=list)
    """Messages after a change of the order."""
    is_closed: bool = False

    def __bool__(self) -> bool:
        """Return whether a message waits in a line, or was lost after one."""
        return bool(self.by_user or self.gaps)

    def add(self, entry: Entry, user: Payer, noticed: int = 0) -> None:
        """Let a message of *user* wait, or a notice of *noticed* losses."""
        if self.is_closed:
            self.later.append(entry)
            return
        self.by_user.setdefault(user, []).append(entry)
        self.noticed[user] = noticed

    def lose(self, user: Payer) -> None:
        """Note a loss."""
        if not self.is_closed:
            self.gaps[user] = self.gaps.get(user, 0) + 1

    def take_notice(self, user: Payer) -> tuple[Entry | None, int]:
        """Return the notice at the end of a line, which leaves the line, and its losses."""
        noticed = self.noticed.get(user, 0)
        return (self.by_user[user].pop() if noticed else None), noticed

    def take_turns(self, waiting: list[Entry]) -> None:
        """Move the next messages to *waiting*."""
        while len(waiting) < FAIR_PACKETS and self.by_user:
            self._take_one(waiting)
        self._end(waiting)

    def merge(self, waiting: list[Entry]) -> None:
        """Let everything wait in one queue, in the order in which it would be sent, if the order has changed."""
        while self.is_closed:
            self._take_one(waiting)
            self._end(waiting)

    def close(self, waiting: list[Entry]) -> None:
        """Let everything that comes now wait behind all lines."""
        self.gaps.clear()
        self.is_closed = True
        self._end(waiting)

    def abandoned(self) -> list[Entry]:
        """Return everything that waits, line after line, and forget it."""
        entries = [entry for user in sorted(self.by_user, key=_place, reverse=True) for entry in self.by_user[user]] + self.later
        self.by_user.clear()
        self.noticed.clear()
        self.gaps.clear()
        self.later.clear()
        self.is_closed = False
        return entries

    def _take_one(self, waiting: list[Entry]) -> None:
        """Move the message whose turn it is."""
        user, entries = self.by_user.popitem(last=False)
        waiting.append(entries.pop(0))
        if entries:
            self.by_user[user] = entries
        else:
            del self.noticed[user]

    def _end(self, waiting: list[Entry]) -> None:
        """If nothing waits in lines, let later messages wait as in any queue."""
        if not self:
            waiting += self.later
            self.later.clear()
            self.is_closed = False


def _place(user: Payer) -> int:
    """Return the place of a user among others; the unknown one is the last."""
    return (1 << 32) - 1 if user is None else user
