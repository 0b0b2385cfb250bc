"""Which modes the next connection is given."""

from __future__ import annotations

from sbusd.client.connection_settings import Modes


def test_of_each_group_the_last_one_holds() -> None:
    modes = Modes()
    for key in (b"echo/off", b"batch/on", b"blocking/soft/discard", b"blocking/hard/error", b"echo/on", b"blocking/soft/queue"):
        modes.remember(key, b"CMSG " + key)
    assert modes.packets == (b"CMSG echo/on", b"CMSG batch/on", b"CMSG blocking/soft/queue", b"CMSG blocking/hard/error")


def test_what_is_off_unless_it_is_wanted_is_forgotten() -> None:
    modes = Modes()
    for key in (b"tap/on", b"sender/on", b"tap/off", b"sender/off"):
        modes.remember(key, key)
    assert modes.packets == ()


def test_what_is_no_mode_is_not_remembered() -> None:
    modes = Modes()
    for key in (b"!/bus/ping", b"receipt/always", b"echo/", b"echo", b"x/y"):
        modes.remember(key, key)
    assert modes.packets == ()


def test_a_group_has_one_mode_whichever_it_is() -> None:
    modes = Modes()
    assert not modes.has(b"batch/on")
    modes.remember(b"batch/off", b"CMSG batch/off")
    assert modes.has(b"batch/on")
