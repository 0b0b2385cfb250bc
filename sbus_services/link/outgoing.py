"""Messages of this host for others: rules, numbers, frames, and the spool while the network is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from sbus.protocol.credentials import split_sender
from sbus.protocol.keys import SECRET_HEAD, KeySpace
from sbus_services.link.blob_tickets import EVERY_HOST, BlobTickets
from sbus_services.link.counters import LinkCounters
from sbus_services.link.flows import PRIVATE_KEY, Flow, FlowTable
from sbus_services.link.frames import MAX_FRAME_BYTES, Data, encode_head, is_sender, message_head
from sbus_services.link.message_runs import MessageRun, RunReader
from sbus_services.link.ports import Network
from sbus_services.link.rates import SharedRate
from sbus_services.link.remote_interest import RemoteInterest
from sbus_services.link.rules import Export, Rules
from sbus_services.link.shared_queue import Frame, Owners, Spool
from sbus_services.link.subjects import Subjects

MAX_ROUTE_BYTES = 1 << 20
"""Bytes of keys whose flows are remembered."""

_KEYS = KeySpace()


class _Part(NamedTuple):
    """Messages of one user in a frame."""

    owner: int
    messages: int
    body: bytes


@dataclass(slots=True)
class _OpenFrame:
    """A frame that can get further messages of its flow with the same subject. *number* is that of its first message."""

    flow: Flow
    subject: str
    number: int
    messages: int = 0
    parts: list[_Part] = field(default_factory=list)
    size: int = 0


class Outgoing:
    """Sends messages of the local bus. A message that is lost here uses up a number, so its receivers see a gap."""

    def __init__(
        self,
        rules: Rules,
        epoch: int,
        interest: RemoteInterest,
        network: Network,
        counters: LinkCounters,
        *,
        is_present: Callable[[str], bool],
        tickets: BlobTickets,
        charged: Callable[[int], int],
    ) -> None:
        """*is_present*: whether a host is known to receive, so that private messages for it can be numbered. *tickets* are of blobs.
        *charged* returns the user that is charged for a uid.
        """
        self.flows = FlowTable()
        self._rules = rules
        self._epoch = epoch
        self._interest = interest
        self._network = network
        self._counters = counters
        self._is_present = is_present
        self._tickets = tickets
        self._owners = Owners(charged)
        self._subjects = Subjects(rules.realm, rules.host)
        self._spool = Spool(rules.spool_bytes)
        self._rates = {id(rule): SharedRate(rule.rate) for rule in rules.exports if rule.rate is not None}
        self._routes: dict[bytes, tuple[Export, str, list[Flow]]] = {}
        self._routes_bytes = 0
        self._former: dict[bytes, tuple[Export, str, list[Flow]]] = {}
        """Routes before the last changes, of keys without a message since then."""
        self._former_bytes = 0
        self._routes_version = (-1, 0)
        self._open: dict[int, _OpenFrame] = {}
        self._connected = False

    @property
    def is_pending(self) -> bool:
        """Whether a frame waits for `flush`."""
        return bool(self._open)

    @property
    def spooled_bytes(self) -> int:
        """Bytes that wait for the network."""
        return self._spool.bytes

    def send(self, run: MessageRun, now: float) -> None:
        """Put messages into frames for all hosts that want them; *now* is in seconds. Their sender is as after ``!/from/<id>/``."""
        run = run._replace(sender=_sendable(run.sender))
        if self._rules.secret_head and run.key.startswith(self._rules.secret_head):
            self._send_secret(run)
            return
        export, subject, flows = self._route(run.key)
        if export is None:
            self._counters.not_exported += run.messages
            return
        if not flows:
            self._counters.not_wanted += run.messages
            return
        if export.max_blob:
            targets = tuple(EVERY_HOST if flow.target is None else flow.target for flow in flows)
            self._tickets.note(self._rules.host, run, export.max_blob, targets)
        rate = self._rates.get(id(export))
        owner = self._owners.of(run.sender) if run.sender else 0
        if rate is None and run.sender and run.longest <= export.max_payload:
            self._number(run, subject, flows, owner)
            return
        for single in run.singles():
            if not run.sender:
                self._counters.without_sender += 1
                self._skip(flows)
            elif single.longest > export.max_payload:
                self._counters.too_long += 1
                self._skip(flows)
            elif rate is not None and not rate.take(owner, now):
                self._counters.over_rate += 1
                self._skip(flows)
            else:
                self._number(single, subject, flows, owner)

    def flush(self) -> None:
        """Send all frames, or spool them while the network is away."""
        for number in list(self._open):
            self._close(number)

    def lose_unknown(self) -> None:
        """Have the receivers report an unknown loss, after all messages so far and before later ones."""
        self.flush()
        self.flows.forgotten += 1

    def connected(self) -> None:
        """Send what the spool has kept, and from now on everything directly."""
        self.flush()
        self._connected = True
        for frame in self._spool.take():
            self._publish(frame)

    def disconnected(self) -> None:
        """Spool frames from now on."""
        self._connected = False

    def _route(self, key: bytes) -> tuple[Export | None, str, list[Flow]]:
        """Return the rule, subject and flows for *key*."""
        version = (self._interest.version, self.flows.ended)
        if self._routes_version != version or self._routes_bytes > MAX_ROUTE_BYTES:
            # A key can be in another flow from now on: its earlier messages have to leave first.
            self.flush()
            self._former_bytes += self._routes_bytes
            if self._former_bytes > MAX_ROUTE_BYTES:
                self._former, self._former_bytes = {}, self._routes_bytes
            self._former.update(self._routes)
            self._routes.clear()
            self._routes_bytes = 0
            self._routes_version = version
        route = self._routes.get(key)
        if route is not None:
            return route
        export = self._rules.export_of(key)
        if export is None:
            return None, "", []
        flows = [self.flows.find(target, names, key) for target, names in self._interest.match(key, export)]
        _, _, former = self._former.pop(key, (None, "", []))
        for flow in flows:
            self.flows.move(former, flow)
        self._routes[key] = export, self._subjects.message(key), flows
        self._routes_bytes += len(key) + 512
        return self._routes[key]

    def _send_secret(self, run: MessageRun) -> None:
        """Send private messages within the key of *run* to the one host that it names."""
        name, _, inner = run.key[len(self._rules.secret_head) :].partition(b"/")
        target = name.decode("ascii", "replace")
        if not (run.sender and self._is_present(target) and self._rules.exchanges_secrets(target) and is_secret(inner)):
            self._counters.refused_secrets += run.messages
            return
        self._counters.messages += run.messages
        flow = self.flows.find(target, [], PRIVATE_KEY)
        self._append(flow, self._subjects.direct(target), self._owners.of(run.sender), RunReader(run, message_head(inner, run.sender)))

    def _number(self, run: MessageRun, subject: str, flows: list[Flow], owner: int) -> None:
        """Put messages of *owner* into frames of all *flows*."""
        self._counters.messages += run.messages
        head = message_head(run.key, run.sender)
        for flow in flows:
            to = subject if flow.target is None else self._subjects.direct(flow.target)
            self._append(flow, to, owner, RunReader(run, head))

    def _skip(self, flows: list[Flow]) -> None:
        for flow in flows:
            # The next message is not the successor of the last one in the open frame.
            self._close(flow.number)
            flow.take()
            self.flows.mark(flow)
            self.flows.note_sent(flow)

    def _append(self, flow: Flow, subject: str, owner: int, messages: RunReader) -> None:
        while messages.left:
            frame = self._open.get(flow.number)
            if frame is not None and frame.subject != subject:
                self._close(flow.number)
                frame = None
            if frame is None:
                frame = self._open[flow.number] = _OpenFrame(flow, subject, flow.last + 1)
            body, count = messages.take(MAX_FRAME_BYTES - frame.size, is_first=not frame.messages)
            if not count:
                self._close(flow.number)
                continue
            frame.parts.append(_Part(owner, count, body))
            frame.size += len(body)
            frame.messages += count
            flow.take(count)
            self.flows.mark(flow)

    def _close(self, number: int) -> None:
        frame = self._open.pop(number, None)
        if frame is None:
            return
        tails = self.flows.news_for(frame.flow)
        self.flows.note_sent(frame.flow)
        # Users share the queues of the network and the spool, so a frame there has messages of one user.
        first = frame.number
        for owner, parts in groupby(frame.parts, attrgetter("owner")):
            ready = self._finish(frame, first, list(parts), tails, owner)
            first, tails = first + ready.messages, b""
            if self._connected:
                self._publish(ready)
            else:
                self._counters.spooled += ready.messages
                self._counters.spool_dropped += self._spool.add(ready)

    def _finish(self, frame: _OpenFrame, first: int, parts: list[_Part], tails: bytes, owner: int) -> Frame:
        """Return the frame with *parts* of *frame*, whose first message has the number *first*."""
        messages = sum(part.messages for part in parts)
        head = encode_head(Data(self._epoch, frame.flow.number, first, messages, self.flows.forgotten, len(tails)))
        return Frame(frame.subject, head, b"".join([tails, *(part.body for part in parts)]), messages, owner)

    def _publish(self, frame: Frame) -> None:
        self._counters.frames += 1
        self._counters.bytes += len(frame.body)
        self._network.publish(frame.subject, frame.head, frame.body, frame.owner)


def is_secret(key: bytes) -> bool:
    """Return whether *key* is a whole private key to which clients may publish."""
    return key.startswith(SECRET_HEAD) and _KEYS.is_publishable(key)


def _sendable(sender: bytes) -> bytes:
    """Return *sender* as other hosts accept it: without the origin for which it vouches if it is too long. Empty: there is none."""
    if is_sender(sender):
        return sender
    parts = split_sender(sender)
    return parts[0] if parts is not None and is_sender(parts[0]) else b""
