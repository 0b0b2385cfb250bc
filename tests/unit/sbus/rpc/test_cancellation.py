"""Cancelled requests: the messages that a caller sends, and the flag that a handler sees."""

from __future__ import annotations

import threading
import time

import pytest

from sbus.bus_socket import State
from sbus.protocol.credentials import Peer
from sbus.protocol.envelope import parse_envelope
from sbus.protocol.packets import Publish, parse_packet
from sbus.rpc.cancellation import Cancellation, withdraw
from sbus.rpc.pending_requests import PendingRequest
from sbus.session import Session

WAIT_SECONDS = 20.0


def peer(connection: int) -> Peer:
    return Peer(connection, 1000, 100, 42, b"!/cred/100/1000/42")


def sent(pending: PendingRequest) -> list[bytes]:
    """Return the keys of the messages that cancel *pending*."""
    session = Session()
    withdraw(session, pending)
    keys: list[bytes] = []
    for packet in session.outgoing:
        parsed = parse_packet(packet)
        assert isinstance(parsed, Publish)
        envelope = parse_envelope(parsed.payload)
        assert (envelope.command, envelope.uid, envelope.cancel, envelope.reply_to) == ("c", "u", 1, "")
        assert envelope.is_expired(time.time())
        keys.append(parsed.key)
    assert session.is_dirty is bool(keys)
    return keys


def test_each_callee_gets_a_message_at_its_address() -> None:
    pending = PendingRequest("c", b"rpc/c", "u")
    pending.called([peer(7), peer(8)], [])
    assert sent(pending) == [b"!/conn/7/rpc/c", b"!/conn/8/rpc/c"]
    pending.left(7)
    assert sent(pending) == [b"!/conn/8/rpc/c"]


def test_callees_that_are_not_known_get_it_where_the_request_went() -> None:
    assert sent(PendingRequest("c", b"rpc/c", "u")) == [b"rpc/c"]
    assert sent(PendingRequest("c", b"rpc/c", "u", peer(7))) == [b"!/conn/7/rpc/c"]
    assert sent(PendingRequest("c", b"relayed/c", "u", peer(7))) == [b"!/conn/7/relayed/c"]


def test_a_request_that_is_done_and_one_to_a_relay_are_not_cancelled() -> None:
    done = PendingRequest("c", b"rpc/c", "u")
    done.finish()
    assert sent(done) == []
    assert sent(PendingRequest("c", b"relay/7/c", "u")) == []


def test_threads_wait_for_it() -> None:
    cancelled, results = Cancellation(), list[bool]()
    threads = [threading.Thread(target=lambda: results.append(cancelled.wait(WAIT_SECONDS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert not cancelled.wait(0.0)
    cancelled.set()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert results == [True] * 4
    assert cancelled
    assert cancelled.wait()


def test_it_is_set_once() -> None:
    calls: list[State] = []
    cancelled = Cancellation()
    cancelled.on_set = lambda: calls.append("closed")
    cancelled.set()
    cancelled.set()
    assert len(calls) == 1


def test_the_thread_that_serves_reads_while_it_waits() -> None:
    cancelled, asked = Cancellation(), list[float]()

    def look(seconds: float) -> bool:
        asked.append(seconds)
        if len(asked) == 3:
            cancelled.set()
        return True

    cancelled.look = look
    assert not cancelled
    assert cancelled.wait(WAIT_SECONDS)
    assert asked[0] == 0.0
    assert 0 < asked[1] <= 0.1
    assert 0.1 < asked[2] <= WAIT_SECONDS
    assert cancelled
    assert len(asked) == 3


@pytest.mark.parametrize("timeout", [0.0, -1.0, 0.001])
def test_a_wait_that_ends(timeout: float) -> None:
    cancelled = Cancellation()
    assert not cancelled.wait(timeout)
    cancelled.look = lambda seconds: seconds >= 0
    assert not cancelled.wait(timeout)
