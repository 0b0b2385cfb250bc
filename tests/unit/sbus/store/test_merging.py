"""What a late subscriber gets of last values and of messages that arrived while they were loaded."""

from __future__ import annotations

from sbus.items import Gap, Item, Message
from sbus.store.merging import merged


def message(key: str, payload: str) -> Message:
    return Message(key.encode(), payload.encode())


def test_a_message_that_the_store_had_stored_comes_once() -> None:
    assert merged([message("a", "2")], [message("a", "1"), message("a", "2")]) == [message("a", "2")]


def test_a_newer_message_stays() -> None:
    assert merged([message("a", "1")], [message("a", "1"), message("a", "2")]) == [message("a", "1"), message("a", "2")]


def test_messages_that_the_store_had_not_yet_stored_stay() -> None:
    assert merged([message("a", "1")], [message("a", "2")]) == [message("a", "1"), message("a", "2")]


def test_other_keys_and_gaps_stay_in_their_order() -> None:
    arrived: list[Item] = [message("b", "1"), Gap(3), message("a", "1"), message("c", "1")]
    assert merged([message("a", "1")], arrived) == [message("a", "1"), message("b", "1"), Gap(3), message("c", "1")]
