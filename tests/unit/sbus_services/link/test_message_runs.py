"""Runs of messages: which they are, and how they are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.errors import ProtocolError
from sbus.protocol.packets import parse_batch
from sbus_services.link.message_runs import MessageRun, RunReader, message_runs, single_run
from tests.support.link_bodies import join_body, run_of

HEADS = st.sampled_from([b"MSG a\0", b"MSG ab\0", b"MSG \0", b"CMSG !/from/1/x\0MSG a\0", b"CMSG !/from/2/x\0MSG a\0"])
OTHERS = st.sampled_from(
    [b"SUB a", b"CMSG !/ping\0MSG a\0", b"CMSG !/from/\0MSG a\0", b"CMSG !/from/1\0", b"CMSG !/from/1\0SUB a\0", b"MSG a", b"M"]
)
MESSAGES = st.builds(lambda head, payload: head + payload, HEADS, st.sampled_from([b"", b"x", b"\0", b"MSG a\0"]))


def split(packet: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return sender, key and payload of a message, None if it is not one."""
    sender = b""
    if packet.startswith(b"CMSG !/from/"):
        sender, nul, packet = packet[12:].partition(b"\0")
        if not sender or not nul:
            return None
    key, nul, payload = packet[4:].partition(b"\0")
    return (sender, key, payload) if packet.startswith(b"MSG ") and nul else None


@given(st.lists(st.one_of(MESSAGES, MESSAGES, OTHERS), min_size=1, max_size=30))
def test_runs_are_the_longest_with_one_head(packets: list[bytes]) -> None:
    found: list[bytes | tuple[bytes, bytes, bytes]] = []
    before: MessageRun | bytes = b""
    for run in message_runs(join_body(packets), 0):
        if isinstance(run, MessageRun):
            assert not isinstance(before, MessageRun) or (before.key, before.sender) != (run.key, run.sender)
            payloads = [single.body[single.place + 4 + single.head :][: single.longest] for single in run.singles()]
            assert (len(payloads), max(map(len, payloads))) == (run.messages, run.longest)
            found += [(run.sender, run.key, payload) for payload in payloads]
        else:
            found.append(run)
        before = run
    assert found == [split(packet) or packet for packet in packets]


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=20), st.binary(max_size=9), st.integers(0, 60), st.data())
def test_a_run_is_divided_by_size(payloads: list[bytes], head: bytes, most: int, data: st.DataObject) -> None:
    skipped = data.draw(st.integers(0, len(payloads) - 1))
    reader = RunReader(run_of(b"key", *payloads, credentials=b"!/cred/1/2/3").without_first(skipped), b"H" + head)
    taken: list[bytes] = []
    while reader.left:
        body, count = reader.take(most, is_first=True)
        packets = list(parse_batch(body, 0))
        assert len(packets) == count
        assert len(body) <= most or count == 1
        taken += packets
    assert taken == [b"H" + head + payload for payload in payloads[skipped:]]
    assert reader.take(1_000, is_first=True) == (b"", 0)


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=20), st.integers(0, 90))
def test_what_does_not_fit_stays(payloads: list[bytes], most: int) -> None:
    reader = RunReader(run_of(b"key", *payloads), b"MSG k\0")
    body, count = reader.take(most, is_first=False)
    assert len(body) <= most
    assert reader.left == len(payloads) - count
    assert count == len(payloads) or len(body) + 4 + 6 + len(payloads[count]) > most


@pytest.mark.parametrize(
    "body", [b"", b"\1", b"\0\0\0\0", b"\5\0\0\0MSG \0\7\0\0\0MSG x\0", b"\xff\xff\xff\xffMSG x\0", join_body([b"CMSG !/batch\0"])]
)
def test_a_malformed_batch_is_an_error(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed batch"):
        list(message_runs(body, 0))


def test_a_packet_alone_is_a_run() -> None:
    run = single_run(b"CMSG !/from/7/!/cred/1/2/3\0MSG a/MSG b\0x\0y")
    assert run is not None
    assert (run.key, run.sender, run.messages, run.longest) == (b"a/MSG b", b"7/!/cred/1/2/3", 1, 3)
    assert single_run(b"CMSG !/bus/lost\x003") is None
