from __future__ import annotations

import pytest

from tests.soak.accounts import Account, SentCounts, SoakError, Stream, read

FIRST, SECOND = Stream(1, 0), Stream(2, 0)


def publish(sent_counts: SentCounts, stream: Stream, number: int = 1) -> list[bytes]:
    packets = []
    for _ in range(number):
        packets.append(sent_counts.write(stream, b"xyz"))
        sent_counts.count(stream)
    return packets


def account(sent_counts: SentCounts, *, in_order: bool = True, is_quiet: bool = True) -> Account:
    made = Account("a", frozenset({0}), in_order=in_order)
    made.open(sent_counts, is_quiet=is_quiet)
    return made


def test_a_message_is_read_as_it_was_written() -> None:
    sent_counts = SentCounts()
    assert [read(packet) for packet in publish(sent_counts, Stream(7, 3), 2)] == [(Stream(7, 3), 0), (Stream(7, 3), 1)]


@pytest.mark.parametrize("packet", [b"", b"MSG odd/1\0x", b"MSG soak/x\0001 2 ", b"MSG soak/1\0001 2"])
def test_a_message_that_was_never_sent_is_detected(packet: bytes) -> None:
    with pytest.raises(SoakError, match="never sent"):
        read(packet)


def test_an_account_balances_when_all_has_come() -> None:
    sent_counts = SentCounts()
    publish(sent_counts, FIRST, 5)
    it = account(sent_counts)
    for packet in publish(sent_counts, FIRST, 3) + publish(sent_counts, SECOND, 2):
        it.note(packet)
    it.close(sent_counts)
    assert it.received == 5


def test_a_message_of_another_topic_is_neither_owed_nor_accepted() -> None:
    sent_counts = SentCounts()
    it = account(sent_counts)
    (packet,) = publish(sent_counts, Stream(1, 1))
    assert it.missing(sent_counts) == 0
    with pytest.raises(SoakError, match="not subscribed"):
        it.note(packet)


def test_a_missing_message_must_be_reported_as_lost() -> None:
    sent_counts = SentCounts()
    it = account(sent_counts)
    packets = publish(sent_counts, FIRST, 3)
    it.note(packets[2])
    assert it.missing(sent_counts) == 2
    it.lost = 2
    it.close(sent_counts)
    it.open(sent_counts, is_quiet=True)
    publish(sent_counts, FIRST)
    with pytest.raises(SoakError, match="1 packets are missing"):
        it.close(sent_counts)


def test_a_wrongly_reported_loss_is_detected() -> None:
    sent_counts = SentCounts()
    it = account(sent_counts)
    for packet in publish(sent_counts, FIRST):
        it.note(packet)
    it.lost = 1
    with pytest.raises(SoakError, match="-1 packets"):
        it.close(sent_counts)


def test_an_account_opened_under_load_may_have_lost_early_messages() -> None:
    sent_counts = SentCounts()
    (early,) = publish(sent_counts, FIRST)
    it = account(sent_counts, is_quiet=False)
    it.note(early)
    it.lost = 1
    it.close(sent_counts)
    assert (it.received, it.early) == (0, 1)


def test_an_account_opened_under_load_must_balance_otherwise() -> None:
    sent_counts = SentCounts()
    it = account(sent_counts, is_quiet=False)
    publish(sent_counts, FIRST)
    with pytest.raises(SoakError, match="1 packets are missing"):
        it.close(sent_counts)


@pytest.mark.parametrize(("order", "problem"), [((0, 0), "after number 0"), ((1, 0), "after number 1")])
def test_disorder_and_doubles_are_seen(order: tuple[int, int], problem: str) -> None:
    sent_counts = SentCounts()
    it = account(sent_counts)
    packets = publish(sent_counts, FIRST, 2)
    it.note(packets[order[0]])
    with pytest.raises(SoakError, match=problem):
        it.note(packets[order[1]])


def test_a_queue_of_another_order_may_reorder_but_not_double() -> None:
    sent_counts = SentCounts()
    it = account(sent_counts, in_order=False)
    packets = publish(sent_counts, FIRST, 2)
    it.note(packets[1])
    it.note(packets[0])
    with pytest.raises(SoakError, match="twice"):
        it.note(packets[1])


def test_pings_are_owed_like_messages() -> None:
    sent_counts = SentCounts()
    it = account(sent_counts)
    it.asked = 1
    assert it.missing(sent_counts) == 1
    it.answered = 1
    it.close(sent_counts)
