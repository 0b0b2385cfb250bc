"""Which blobs other hosts may pull from here, and which may be pulled from them: those whose messages have crossed. No I/O.

A message refers to a blob by its ticket. When it leaves by a rule with ``max_blob``, the hosts that it is for may pull the blob; when it
comes in by one, users here may. So the rules for messages decide about blobs too, and another host cannot use a ticket that it has got in
another way. The host in the reference must be the one that sends the message: no host can offer a blob as that of another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sbus.protocol.blobs import MARK, MAX_EXPIRE, Reference, parse_reference
from sbus.protocol.packets import LENGTH_BYTES
from sbus_services.link.message_runs import MessageRun
from sbus_services.link.shared_queue import Owners

MAX_OF_PUBLISHER = 256
"""Tickets of one publisher that are remembered. Beyond them the oldest is forgotten."""

MAX_PUBLISHERS = 64
"""Publishers of one host whose tickets are remembered. Beyond them those are forgotten that have published least recently."""

EVERY_HOST = "*"

_MARK = b'"' + MARK.encode() + b'"'


@dataclass(slots=True, eq=False)
class _Entry:
    """One ticket: the largest permitted size, the hosts that may pull it, and when it is forgotten."""

    max_bytes: int
    hosts: set[str]
    until: float


class BlobTickets:
    """The tickets in messages of some hosts. *clock* counts seconds. *charged* returns the user that is charged for a uid of this *host*;
    which ids of another host belong together is not known here."""

    def __init__(self, clock: Callable[[], float], host: str = "", charged: Callable[[int], int] = int) -> None:
        self._clock = clock
        self._host = host
        self._own, self._others = Owners(charged), Owners(int)
        self._publishers: dict[str, OrderedDict[int, OrderedDict[str, _Entry]]] = {}
        self._entries: dict[tuple[str, str], _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, origin: str, run: MessageRun, max_bytes: int, hosts: tuple[str, ...]) -> None:
        """Note the blobs of the host *origin* in *run*, which a rule with ``max_blob`` of *max_bytes* lets pass for *hosts*."""
        # An upper bound: bytes of later runs may be found too, and then this one is looked at in vain.
        end = run.place + run.messages * (LENGTH_BYTES + run.head + run.longest)
        if not run.sender or run.body.find(_MARK, run.place, end) < 0:
            return
        publisher = (self._own if origin == self._host else self._others).of(run.sender)
        for reference in _references(run):
            if host_label(reference.host) == origin and reference.size <= max_bytes:
                self._add(origin, publisher, reference.ticket, max_bytes, hosts)

    def max_bytes(self, origin: str, ticket: str, host: str) -> int | None:
        """Return the largest size that the blob of *origin* with *ticket* may have for *host*, or None if it may not be pulled."""
        entry = self._entries.get((origin, ticket))
        if entry is None or entry.until <= self._clock() or not entry.hosts.intersection((host, EVERY_HOST)):
            return None
        return entry.max_bytes

    def _add(self, origin: str, publisher: int, ticket: str, max_bytes: int, hosts: tuple[str, ...]) -> None:
        """Remember a ticket."""
        until = self._clock() + MAX_EXPIRE
        known = self._entries.get((origin, ticket))
        if known is not None:
            known.hosts.update(hosts)
            known.max_bytes, known.until = max(known.max_bytes, max_bytes), until
            return
        publishers = self._publishers.setdefault(origin, OrderedDict())
        tickets = publishers.setdefault(publisher, OrderedDict())
        publishers.move_to_end(publisher)
        tickets[ticket] = self._entries[origin, ticket] = _Entry(max_bytes, set(hosts), until)
        while len(tickets) > MAX_OF_PUBLISHER or (tickets and next(iter(tickets.values())).until <= self._clock()):
            oldest, _ = tickets.popitem(last=False)
            del self._entries[origin, oldest]
        if len(publishers) > MAX_PUBLISHERS:
            _, forgotten = publishers.popitem(last=False)
            for each in forgotten:
                del self._entries[origin, each]


def host_label(name: str) -> str:
    """Return the name of a host for the link: *name* in a reference without its domain."""
    return name.partition(".")[0]


def _references(run: MessageRun) -> Iterator[Reference]:
    """Yield the references to blobs in *run*."""
    for single in run.singles():
        begin = single.place + LENGTH_BYTES + single.head
        if (reference := parse_reference(single.body[begin : begin + single.longest])) is not None:
            yield reference
