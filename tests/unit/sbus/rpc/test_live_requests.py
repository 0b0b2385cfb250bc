"""Callers of requests that take long are watched, once each, and only as long as it is useful."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sbus.errors import AnswerLost
from sbus.inbox import Inbox
from sbus.protocol import controls
from sbus.protocol.packets import Control, Publish, Subscribe, Unsubscribe, parse_packet
from sbus.rpc import live_requests
from sbus.rpc.cancellation import Cancellation
from sbus.rpc.live_requests import CallerWatch, LiveRequests
from sbus.session import Session


@dataclass(frozen=True)
class Made:
    """A request that runs."""

    place: tuple[int, str]
    reply_key: bytes = b""
    command: str = "c"
    cancelled: Cancellation = field(default_factory=Cancellation)


class Setting:
    """A session with the subscription of services, and the requests of it."""

    def __init__(self) -> None:
        self.session = Session()
        self.inbox: Inbox = self.session.new_inbox([b"rpc/c"])
        self.session.routes.add(self.inbox)
        self.live = LiveRequests()
        self.watch = CallerWatch(self.session, self.inbox, self.live)

    def add(self, connection: int, uid: str = "u", *, wants_response: bool = True) -> Made:
        made = Made((connection, uid), b"!/conn/%d/ret/u" % connection if wants_response else b"")
        self.live.add(made)
        return made

    def sent(self) -> list[str]:
        """Return what has been sent since the last time, without barriers."""
        found: list[str] = []
        while self.session.outgoing:
            packet = self.session.outgoing.head()
            self.session.outgoing.sent()
            match parse_packet(packet):
                case Subscribe(pattern):
                    found.append(f"SUB {pattern.decode()}")
                case Unsubscribe(pattern):
                    found.append(f"UNSUB {pattern.decode()}")
                case Control(key, payload) if key == controls.MEMBERS:
                    found.append(f"members {(payload or b'').decode()}")
                case Publish(key):
                    found.append(key.decode())
        return found

    def answer(self, *packets: bytes) -> None:
        """Receive packets of the bus, and all its barriers."""
        for packet in packets:
            self.session.receive(packet)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_a_caller_is_watched_at_the_second_look_and_once(setting: Setting) -> None:
    setting.add(7)
    setting.watch.look()
    assert setting.sent() == []
    setting.add(7, "v")
    setting.watch.look()
    assert setting.sent() == ["SUB !/event/disconnect/7", "members !/conn/7/ret/u"]
    setting.watch.look()
    assert setting.sent() == []
    assert setting.inbox.patterns == [b"rpc/c", b"!/event/disconnect/7"]


def test_short_requests_and_those_without_a_response_cost_nothing(setting: Setting) -> None:
    setting.live.remove(setting.add(7))
    setting.add(8, wants_response=False)
    for _ in range(3):
        setting.live.remove(setting.add(7))
        setting.watch.look()
    assert setting.sent() == []


def test_the_end_of_a_caller_cancels_its_requests_alone(setting: Setting) -> None:
    gone, other, published = setting.add(7), setting.add(8), setting.add(7, "v", wants_response=False)
    setting.watch.look()
    setting.watch.look()
    setting.sent()
    assert setting.watch.left(b"!/event/disconnect/7")
    assert [bool(each.cancelled) for each in (gone, other, published)] == [True, False, False]
    assert setting.sent() == ["UNSUB !/event/disconnect/7"]
    assert setting.inbox.patterns == [b"rpc/c", b"!/event/disconnect/8"]
    assert not setting.watch.left(b"rpc/c")
    assert setting.watch.left(b"!/event/disconnect/x")


def test_a_caller_that_left_before_it_was_watched_is_noticed(setting: Setting) -> None:
    gone = setting.add(7)
    setting.watch.look()
    setting.watch.look()
    pings = [packet[5:].partition(b"\0")[2] for packet in setting.session.outgoing if packet.startswith(b"CMSG !/bus/ping")]
    setting.answer(b"CMSG !/bus/ping\0" + pings[0])
    assert not gone.cancelled
    setting.answer(b'CMSG !/bus/members\0{"members":[],"next":null}')
    assert gone.cancelled


def test_a_rule_that_hides_the_end(setting: Setting) -> None:
    request = setting.add(7)
    setting.watch.look()
    setting.watch.look()
    setting.answer(b"CMSG !/bus/error\0EPERM a rule")
    assert setting.inbox.patterns == [b"rpc/c"]
    setting.sent()
    setting.watch.look()
    assert setting.sent() == []
    assert not request.cancelled


def test_after_a_loss_the_watched_callers_are_asked_for(setting: Setting) -> None:
    first = setting.add(7)
    setting.add(7, "v")
    setting.watch.look()
    setting.watch.look()
    setting.add(8)
    setting.sent()
    for call in setting.watch.watch(first):
        call.finish(b'{"members":[{"id":7,"cred":"!/cred/100/1000/42"}],"next":null}')
    setting.watch.lost()
    assert setting.sent() == ["members !/conn/7/ret/u"]
    setting.watch.lost()
    assert setting.sent() == [], "the answer to the open question comes after all that is lost"
    for call in setting.watch.watch(first):
        call.finish(error=AnswerLost("CMSG"))
    assert setting.sent() == ["members !/conn/7/ret/u"]


def test_a_reconnection_cancels_all_that_want_a_response(setting: Setting) -> None:
    requests = [setting.add(7), setting.add(8), setting.add(9, wants_response=False)]
    setting.watch.look()
    setting.watch.look()
    setting.watch.reconnected()
    assert [bool(each.cancelled) for each in requests] == [True, True, False]
    assert setting.inbox.patterns == [b"rpc/c"]


def test_few_idle_callers_stay_watched(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_requests, "_WATCHED_CALLERS", 2)
    kept = setting.add(1)
    for connection in range(2, 10):
        request = setting.add(connection)
        setting.watch.look()
        setting.watch.look()
        setting.live.remove(request)
    assert setting.inbox.patterns == [b"rpc/c", b"!/event/disconnect/1", b"!/event/disconnect/9"]
    assert not kept.cancelled
