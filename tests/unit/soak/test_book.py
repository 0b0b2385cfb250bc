from __future__ import annotations

import pytest

from tests.soak.book import Account, Book, SoakError, Stream, read

FIRST, SECOND = Stream(1, 0), Stream(2, 0)


def publish(book: Book, stream: Stream, number: int = 1) -> list[bytes]:
    packets = []
    for _ in range(number):
        packets.append(book.write(stream, b"xyz"))
        book.count(stream)
    return packets


def account(book: Book, *, in_order: bool = True, is_quiet: bool = True) -> Account:
    made = Account("a", frozenset({0}), in_order=in_order)
    made.open(book, is_quiet=is_quiet)
    return made


def test_a_message_is_read_as_it_was_written() -> None:
    book = Book()
    assert [read(packet) for packet in publish(book, Stream(7, 3), 2)] == [(Stream(7, 3), 0), (Stream(7, 3), 1)]


@pytest.mark.parametrize("packet", [b"", b"MSG odd/1\0x", b"MSG soak/x\0001 2 ", b"MSG soak/1\0001 2"])
def test_what_nobody_sent_is_seen(packet: bytes) -> None:
    with pytest.raises(SoakError, match="nobody sent"):
        read(packet)


def test_an_account_balances_when_all_has_come() -> None:
    book = Book()
    publish(book, FIRST, 5)
    it = account(book)
    for packet in publish(book, FIRST, 3) + publish(book, SECOND, 2):
        it.note(packet)
    it.close(book)
    assert it.received == 5


def test_a_message_of_another_topic_is_neither_owed_nor_accepted() -> None:
    book = Book()
    it = account(book)
    (packet,) = publish(book, Stream(1, 1))
    assert it.missing(book) == 0
    with pytest.raises(SoakError, match="not subscribed"):
        it.note(packet)


def test_what_is_missing_must_have_been_told() -> None:
    book = Book()
    it = account(book)
    packets = publish(book, FIRST, 3)
    it.note(packets[2])
    assert it.missing(book) == 2
    it.lost = 2
    it.close(book)
    it.open(book, is_quiet=True)
    publish(book, FIRST)
    with pytest.raises(SoakError, match="1 packets are missing"):
        it.close(book)


def test_a_loss_that_was_none_is_seen() -> None:
    book = Book()
    it = account(book)
    for packet in publish(book, FIRST):
        it.note(packet)
    it.lost = 1
    with pytest.raises(SoakError, match="-1 packets"):
        it.close(book)


def test_who_came_in_the_middle_may_have_lost_what_was_early() -> None:
    book = Book()
    (early,) = publish(book, FIRST)
    it = account(book, is_quiet=False)
    it.note(early)
    it.lost = 1
    it.close(book)
    assert (it.received, it.early) == (0, 1)


def test_who_came_in_the_middle_owes_nothing_else() -> None:
    book = Book()
    it = account(book, is_quiet=False)
    publish(book, FIRST)
    with pytest.raises(SoakError, match="1 packets are missing"):
        it.close(book)


@pytest.mark.parametrize(("order", "problem"), [((0, 0), "after number 0"), ((1, 0), "after number 1")])
def test_disorder_and_doubles_are_seen(order: tuple[int, int], problem: str) -> None:
    book = Book()
    it = account(book)
    packets = publish(book, FIRST, 2)
    it.note(packets[order[0]])
    with pytest.raises(SoakError, match=problem):
        it.note(packets[order[1]])


def test_a_queue_of_another_order_may_reorder_but_not_double() -> None:
    book = Book()
    it = account(book, in_order=False)
    packets = publish(book, FIRST, 2)
    it.note(packets[1])
    it.note(packets[0])
    with pytest.raises(SoakError, match="twice"):
        it.note(packets[1])


def test_pings_are_owed_like_messages() -> None:
    book = Book()
    it = account(book)
    it.asked = 1
    assert it.missing(book) == 1
    it.answered = 1
    it.close(book)
