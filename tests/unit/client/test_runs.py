"""The messages of a batch, as they came and taken apart."""

from __future__ import annotations

import pytest

from sbusd.client.messages import Message
from sbusd.client.runs import Run, measure_run, take_apart
from sbusd.protocol.batches import BATCH_HEAD, join_batch

START = len(BATCH_HEAD)


def test_messages_in_a_row_are_one_run() -> None:
    messages = [Message(b"a", b""), Message(b"", b"\0x"), Message(b"b/c", b"y" * 300)]
    batch = join_batch([b"MSG %b\0%b" % (each.key, each.payload) for each in messages])
    end, count = measure_run(batch, START)
    assert (end, count) == (len(batch), 3)
    run = Run(batch, START, end, count)
    assert run.messages() == messages
    assert run.size == sum(len(each.key) + len(each.payload) for each in messages)


@pytest.mark.parametrize("other", [b"CMSG !/bus/lost\x001", b"MSG without NUL", b"MSG ", b"M", b"SUB a", b"msg a\0x"])
def test_a_run_ends_in_front_of_what_is_no_message(other: bytes) -> None:
    batch = join_batch([b"MSG a\0x", other, b"MSG b\0y"])
    end, count = measure_run(batch, START)
    assert count == 1
    assert take_apart(batch, START, end) == [Message(b"a", b"x")]
    assert measure_run(batch, end) == (end, 0)
    behind = end + 4 + len(other)
    assert measure_run(batch, behind) == (len(batch), 1)
    assert take_apart(batch, behind, len(batch)) == [Message(b"b", b"y")]


def test_a_run_ends_in_front_of_what_is_cut_short() -> None:
    whole = join_batch([b"MSG a\0x", b"MSG bb\0yy"])
    first, _ = measure_run(join_batch([b"MSG a\0x"]), START)
    for size in range(first, len(whole)):
        assert measure_run(whole[:size], START) == (first, 1)
    assert measure_run(whole, START) == (len(whole), 2)
    assert measure_run(whole[:first] + b"\xff\xff\xff\xffMSG b\0", START) == (first, 1)


def test_a_nul_of_the_next_packet_is_not_that_of_this_one() -> None:
    batch = join_batch([b"MSG key", b"MSG b\0y"])
    assert measure_run(batch, START) == (START, 0)


@pytest.mark.parametrize("place", [START, START + 1, 0])
def test_where_nothing_is_left_there_is_no_run(place: int) -> None:
    assert measure_run(BATCH_HEAD, place) == (place, 0)
