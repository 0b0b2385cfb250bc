"""How messages are divided into calls of ``store/put``, and how long a client waits for a store that restarts."""

from __future__ import annotations

import pytest

from sbus import NewMessage, PayloadTooLarge, ProtocolError
from sbus.protocol.framed_data import MAX_DATA_BYTES, MAX_FRAMES, parse_framed_data
from sbus.store.requests import RESTART_SECONDS, Pauses, put_requests


def test_each_call_fits_and_keeps_the_order() -> None:
    messages = [NewMessage("k", bytes(size), id=str(size)) for size in [1] * 300 + [100_000] * 7]
    requests = list(put_requests(messages))
    assert all(len(each.data) <= MAX_DATA_BYTES and each.count <= MAX_FRAMES for each in requests)
    frames = [frame for each in requests for frame in parse_framed_data(each.data)[1]]
    assert frames == [message.frame for message in messages]


def test_a_call_is_repeated_only_if_all_messages_have_an_id() -> None:
    (mixed,) = put_requests([NewMessage("k", id="1"), NewMessage("k")])
    (named,) = put_requests([NewMessage("k", id="1"), NewMessage("k", id="2")])
    assert (mixed.is_repeatable, named.is_repeatable) == (False, True)


def test_a_message_that_fits_into_no_call() -> None:
    with pytest.raises(PayloadTooLarge, match=r"at most \d+$"):  # publish_blob() does not store it
        list(put_requests([NewMessage("k", bytes(MAX_DATA_BYTES))]))


def test_a_key_with_nul_would_move_a_part_of_it_into_the_payload() -> None:
    with pytest.raises(ProtocolError, match="NUL"):
        list(put_requests([NewMessage("k\0x")]))


@pytest.mark.parametrize(("options", "words"), [({"delay": 1.0, "at": 1.0}, "both set"), ({"expire": -1.0}, "invalid expire")])
def test_invalid_times(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NewMessage("k", **options)  # type: ignore[arg-type]


def test_pauses_grow_and_end() -> None:
    pauses, now, seen = Pauses(0.0), 0.0, []
    while (pause := pauses.next(now)) is not None:
        seen.append(pause)
        now += pause
    assert now == pytest.approx(RESTART_SECONDS)
    assert seen[0] < seen[1] <= max(seen) <= 1.0
