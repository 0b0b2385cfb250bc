"""The pages of all subscriptions: access to them, and agreement with the tap."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from sbusd.broker.subscription_list import PAGE_CLIENTS, PAGE_PATTERN_BYTES, PAGE_PATTERNS
from sbusd.config.rules import RightsSettings, Subjects
from sbusd.config.settings import DaemonSettings
from sbusd.protocol import controls
from tests.support.parlour import Guest, MakeParlour, Parlour
from tests.support.wire import error_code

ALICE, BOB, TAPPER = 1_000, 1_001, 1_002

Told = tuple[int, str]


def fill(parlour: Parlour, guest: Guest, patterns: Iterable[bytes]) -> None:
    """Let *guest* subscribe to *patterns*, and let the bus read after each, because the socket buffer is small."""
    for pattern in patterns:
        guest.subscribe(pattern)
        parlour.run()


def next_page(guest: Guest, after: str = "") -> tuple[list[Told], str | None]:
    """Return the pairs of connection and pattern on a page, and the start of the next page."""
    page = json.loads(guest.ask(controls.SUBSCRIPTIONS, after.encode()))
    assert page["after"] == after
    return [(each["id"], each["pattern"]) for each in page["subscriptions"]], page["next"]


def all_pages(guest: Guest) -> list[list[Told]]:
    told, following = next_page(guest)
    pages = [told]
    while following is not None:
        told, following = next_page(guest, following)
        pages.append(told)
    return pages


def test_each_pattern_is_listed_once_with_its_connection(parlour: Parlour) -> None:
    alice, bob, owner = parlour.guest(uid=ALICE, gid=7, pid=55), parlour.guest(uid=BOB), parlour.guest()
    for pattern in (b"b", b"a/", b"a/", b"", b"\xff", b"!/cred//1000//x"):
        alice.subscribe(pattern)
    bob.subscribe(b"a/")
    parlour.run()
    (told,) = all_pages(owner)
    mine = [(alice.connection, pattern) for pattern in ("", "!/cred//1000//x", "a/", "b", "\\xff")]
    assert told == [*mine, (bob.connection, "a/")]
    entries = json.loads(owner.ask(controls.SUBSCRIPTIONS))["subscriptions"]
    assert {each["cred"] for each in entries if each["id"] == alice.connection} == {"!/cred/7/1000/55"}
    assert entries[4]["pattern_base64"] == "/w=="


@pytest.mark.parametrize("count", [0, 1, PAGE_PATTERNS - 1, PAGE_PATTERNS, PAGE_PATTERNS + 1, 2 * PAGE_PATTERNS + 1])
def test_pages_are_bounded_wherever_connections_end(make_parlour: MakeParlour, count: int) -> None:
    parlour = make_parlour()
    guests = [parlour.guest(uid=ALICE) for _ in range(3)]
    owner = parlour.guest()
    fill(parlour, guests[0], (b"%04d" % number for number in range(min(count, PAGE_PATTERNS))))
    fill(parlour, guests[2], (b"%04d" % number for number in range(PAGE_PATTERNS, count)))
    pages = all_pages(owner)
    assert [told for page in pages for told in page] == [
        (guests[0 if number < PAGE_PATTERNS else 2].connection, f"{number:04}") for number in range(count)
    ]
    assert [len(page) for page in pages[:-1]] == [PAGE_PATTERNS] * (max(0, count - 1) // PAGE_PATTERNS)


def test_long_patterns_end_a_page_sooner(parlour: Parlour) -> None:
    alice, owner = parlour.guest(uid=ALICE), parlour.guest()
    longest = 1_000
    fill(parlour, alice, (b"%02d" % number + b"\x01" * (longest - 2) for number in range(40)))
    pages = all_pages(owner)
    assert sum(len(page) for page in pages) == 40
    assert all(sum(len(pattern) for _, pattern in page) < PAGE_PATTERN_BYTES + longest for page in pages)
    assert len(pages) == 3


def test_with_the_events_of_a_tap_the_pages_agree(parlour: Parlour) -> None:
    """Patterns and connections come and go between two pages; no subscription is missing, and events report each removal."""
    first, second, owner = parlour.guest(uid=ALICE), parlour.guest(uid=BOB), parlour.guest()
    fill(parlour, first, (b"%04d" % number for number in range(PAGE_PATTERNS + 50)))
    fill(parlour, second, [b"z"])
    owner.control(controls.TAP_ON)
    told, following = next_page(owner)
    known = set(told)
    first.unsubscribe(b"0000")
    first.unsubscribe(b"%04d" % (PAGE_PATTERNS - 1))
    first.unsubscribe(b"%04d" % PAGE_PATTERNS)
    first.subscribe(b"0000x")
    first.subscribe(b"9")
    second.close()
    parlour.run()
    for packet in owner.receive_all():
        fact = json.loads(packet.removeprefix(b"CMSG !/tap\0"))
        if fact["kind"] == "subscribe":
            known.add((fact["id"], fact["pattern"]))
        elif fact["kind"] == "unsubscribe":
            known.discard((fact["id"], fact["pattern"]))
        elif fact["kind"] == "disconnect":
            known = {each for each in known if each[0] != fact["id"]}
    assert following is not None
    told, following = next_page(owner, following)
    assert following is None
    gone = {0, PAGE_PATTERNS - 1, PAGE_PATTERNS}
    names = {f"{number:04}" for number in range(PAGE_PATTERNS + 50) if number not in gone} | {"0000x", "9"}
    assert known | set(told) == {(first.connection, name) for name in names}


def test_other_clients_are_denied(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(rights=RightsSettings(tap=Subjects(users=(TAPPER,)), presence=Subjects(users=(BOB,)))))
    alice, bob, tapper = parlour.guest(uid=ALICE), parlour.guest(uid=BOB), parlour.guest(uid=TAPPER)
    alice.subscribe(b"!/cred//1000//x")
    parlour.run()
    for guest in (alice, bob):
        guest.control(controls.SUBSCRIPTIONS)
        (told,) = guest.receive_all()
        assert error_code(told) == "EPERM"
    assert all_pages(tapper) == [[(alice.connection, "!/cred//1000//x")]]


@pytest.mark.parametrize("after", ["1", "/", "1/", "x/61", "1/6", "1/6A", "1/61/", "-1/61", "1/61\n", "1" * 20 + "/61", "\0", "1/ 61"])
def test_an_invalid_cursor_is_an_error(parlour: Parlour, after: str) -> None:
    owner = parlour.guest()
    if after == "1/":
        assert next_page(owner, after) == ([], None)
        return
    owner.control(controls.SUBSCRIPTIONS, after.encode())
    (told,) = owner.receive_all()
    assert error_code(told) == "EINVAL"


def test_a_page_reads_a_bounded_number_of_connections(parlour: Parlour) -> None:
    """Otherwise one request would read ten thousand connections without patterns."""
    guests = [parlour.guest(uid=ALICE) for _ in range(2 * PAGE_CLIENTS + 5)]
    owner = parlour.guest()
    having = [guests[0], guests[PAGE_CLIENTS - 1], guests[PAGE_CLIENTS], guests[-1]]
    for guest in having:
        fill(parlour, guest, [b"", b"x"])
    pages = all_pages(owner)
    assert [told for page in pages for told in page] == [(guest.connection, pattern) for guest in having for pattern in ("", "x")]
    assert [len(page) for page in pages] == [4, 2, 2]
    assert all_pages(owner) == pages
