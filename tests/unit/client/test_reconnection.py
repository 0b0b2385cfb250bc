"""Which settings the next connection is given."""

from __future__ import annotations

from sbusd.client.reconnection import SavedSettings


def test_of_each_group_the_last_one_holds() -> None:
    settings = SavedSettings()
    for key in (b"echo/off", b"batch/on", b"blocking/soft/discard", b"blocking/hard/error", b"echo/on", b"blocking/soft/queue"):
        settings.save(key, b"CMSG " + key)
    assert settings.packets == (b"CMSG echo/on", b"CMSG batch/on", b"CMSG blocking/soft/queue", b"CMSG blocking/hard/error")


def test_what_is_off_unless_it_is_wanted_is_forgotten() -> None:
    settings = SavedSettings()
    for key in (b"tap/on", b"sender/on", b"tap/off", b"sender/off"):
        settings.save(key, key)
    assert settings.packets == ()


def test_what_is_no_mode_is_not_remembered() -> None:
    settings = SavedSettings()
    for key in (b"!/bus/ping", b"receipt/always", b"echo/", b"echo", b"x/y"):
        settings.save(key, key)
    assert settings.packets == ()


def test_a_group_has_one_mode_whichever_it_is() -> None:
    settings = SavedSettings()
    assert not settings.has(b"batch/on")
    settings.save(b"batch/off", b"CMSG batch/off")
    assert settings.has(b"batch/on")
