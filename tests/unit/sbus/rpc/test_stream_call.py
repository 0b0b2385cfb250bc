"""The request of a stream, without any bus: which responses are parts, and what ends it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.errors import AnswerLost, PeerDisconnected, RemoteError
from sbus.protocol.credentials import Peer
from sbus.protocol.envelope import Envelope, parse_envelope
from sbus.rpc.stream_call import StreamInvocation, StreamRequest


def peer(connection: int) -> Peer:
    return Peer(connection, 1000, 100, 42, b"!/cred/100/1000/42")


ONE, TWO, THREE = peer(1), peer(2), peer(3)


def opened(*callees: Peer, granted: int = 16) -> StreamRequest:
    stream = StreamRequest("c", b"rpc/c", "u")
    stream.called(callees, [])
    stream.granted = granted
    return stream


def part(number: int, more: int = 1, error: str = "") -> Envelope:
    return Envelope("c", "u", b"%d" % number, error=error, part=number, more=more)


def test_the_request_grants_one_part() -> None:
    request = StreamInvocation("c", b"", 5.0, window=9)
    envelope = parse_envelope(request.envelope("u", b"!/conn/7/ret/u", request.deadline()))
    assert (envelope.window, envelope.more, envelope.part) == (1, 0, 0)


def test_parts_and_the_end() -> None:
    stream = opened(ONE)
    for number in (1, 2, 3):
        assert stream.answered(ONE, part(number))
    assert not stream.is_done
    assert stream.answered(ONE, part(4, 0))
    assert (stream.is_done, stream.error, [each.data for each in stream.parts]) == (True, None, [b"1", b"2", b"3"])
    assert not stream.answered(ONE, part(5))


def test_the_first_that_sends_a_part_is_the_only_one_that_counts() -> None:
    """A second service, or a user who has learned ``ret``, adds nothing to the stream."""
    stream = opened(ONE, TWO)
    assert not stream.answered(THREE, part(1))
    assert stream.answered(TWO, part(1))
    assert not stream.answered(ONE, part(1))
    assert stream.others == (1,)
    stream.left(1)
    assert not stream.is_done
    stream.left(2)
    assert isinstance(stream.error, PeerDisconnected)
    assert len(stream.parts) == 1


def test_parts_before_the_callees_are_known_are_held() -> None:
    stream = StreamRequest("c", b"rpc/c", "u")
    assert stream.answered(ONE, part(1))
    assert not stream.arrival.is_done
    assert stream.answered(TWO, part(1))
    assert stream.called([ONE, TWO], []) == 1
    assert (stream.answerer, len(stream.parts)) == (ONE, 1)


def test_a_single_response_is_a_part_and_the_end() -> None:
    stream = opened(ONE)
    stream.answered(ONE, Envelope("c", "u", b"all"))
    assert (stream.is_done, [each.data for each in stream.parts], stream.is_broken) == (True, [b"all"], False)


@pytest.mark.parametrize("error", ["", "no more"])
def test_an_error_is_the_end_and_parts_can_still_be_taken(error: str) -> None:
    stream = opened(ONE)
    stream.answered(ONE, part(1))
    stream.answered(ONE, part(0, 0, error) if error else part(2, 0))
    assert (stream.is_done, len(stream.parts), stream.is_broken) == (True, 1, False)
    assert isinstance(stream.error, RemoteError) is bool(error)


def test_the_link_is_woken_by_each_part_and_the_end() -> None:
    stream, woken = opened(ONE), list[int]()
    stream.arrival.on_done = lambda: woken.append(len(stream.parts))
    stream.answered(ONE, part(1))
    stream.answered(ONE, part(2))
    stream.answered(ONE, part(3, 0))
    assert woken == [1, 2, 2]


def test_a_loss_breaks_it_unless_it_has_ended() -> None:
    stream, ended = opened(ONE), opened(ONE)
    ended.answered(ONE, part(1, 0))
    for each in (stream, ended):
        each.lost()
    assert isinstance(stream.error, AnswerLost)
    assert (stream.is_broken, ended.error, ended.is_broken) == (True, None, False)


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO, THREE]), st.integers(0, 6), st.integers(0, 1)), max_size=30), st.integers(1, 6))
def test_what_is_taken_is_a_prefix_without_gaps(responses: list[tuple[Peer, int, int]], granted: int) -> None:
    """Whatever the services and another user send, in any order: 1, 2, 3…, from one callee, and never more than was granted."""
    stream = opened(ONE, TWO, granted=granted)
    ends = 0
    for sender, number, more in responses:
        before = stream.is_done
        counted = stream.answered(sender, part(number, more))
        assert not (counted and (before or sender is THREE))
        ends += stream.is_done and not before
    numbers = [each.part for each in stream.parts]
    assert numbers in (list(range(1, len(numbers) + 1)), [0])
    assert len(numbers) <= granted
    assert ends <= 1
    if stream.is_done and stream.error is None and numbers != [0]:
        assert (stream.answerer, len(numbers) + 1, 0) in {(sender, number, more) for sender, number, more in responses}
