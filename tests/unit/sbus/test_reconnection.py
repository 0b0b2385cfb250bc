"""Delays between attempts, and which settings the next connection is given."""

from __future__ import annotations

import pytest

from sbus.reconnection import FIRST_SECONDS, MOST_SECONDS, ReconnectAttempts, SavedSettings
from sbusd.broker.connection_settings import LASTING


def test_the_first_try_is_at_once_and_delays_are_bounded() -> None:
    backoff = ReconnectAttempts(0.0)
    backoff.lost(100.0)
    assert backoff.due == 100.0
    delays = []
    for _ in range(30):
        backoff.attempt(100.0)
        delays.append(backoff.due - 100.0)
    assert all(FIRST_SECONDS / 2 <= delay <= MOST_SECONDS for delay in delays)
    assert delays[0] <= FIRST_SECONDS
    assert delays[-1] >= MOST_SECONDS / 2
    assert backoff.attempts == 30


def test_a_connection_that_does_not_last_is_not_tried_again_at_once() -> None:
    backoff = ReconnectAttempts(0.0)
    backoff.lost(100.0)
    backoff.attempt(100.0)
    backoff.connected(100.0)
    backoff.lost(100.1)
    assert backoff.due > 100.1
    assert (backoff.attempts, backoff.since) == (0, 100.1)


def test_one_that_lasted_is() -> None:
    backoff = ReconnectAttempts(0.0)
    backoff.lost(100.0)
    backoff.attempt(100.0)
    backoff.connected(100.0)
    backoff.lost(100.0 + MOST_SECONDS)
    assert backoff.due == 100.0 + MOST_SECONDS


def test_of_each_group_the_last_one_holds() -> None:
    settings = SavedSettings()
    for key in (b"echo/off", b"batch/on", b"blocking/soft/discard", b"blocking/hard/error", b"echo/on", b"blocking/soft/queue"):
        settings.save(key, b"CMSG " + key)
    assert settings.packets == (b"CMSG echo/on", b"CMSG batch/on", b"CMSG blocking/soft/queue", b"CMSG blocking/hard/error")


def test_settings_with_their_default_value_are_not_stored() -> None:
    settings = SavedSettings()
    for key in (b"tap/on", b"sender/on", b"tap/off", b"sender/off"):
        settings.save(key, key)
    assert settings.packets == ()


def test_a_packet_that_is_not_a_setting_is_not_stored() -> None:
    settings = SavedSettings()
    for key in (b"!/bus/ping", b"receipt/always", b"echo/", b"echo", b"x/y"):
        settings.save(key, key)
    assert settings.packets == ()


def test_a_group_has_one_mode_whichever_it_is() -> None:
    settings = SavedSettings()
    assert not settings.has(b"batch/on")
    settings.save(b"batch/off", b"CMSG batch/off")
    assert settings.has(b"batch/on")


@pytest.mark.parametrize("key", sorted(set(LASTING) - {b"pace/on", b"pace/off"}))
def test_each_lasting_setting_of_the_bus_is_stored(key: bytes) -> None:
    """A new setting must be in the groups of the client too. Pacing is requested again by ``features.Pacing``."""
    settings = SavedSettings()
    group = key.rpartition(b"/")[0]
    settings.save(b"%b/other" % group, b"other setting")
    settings.save(key, b"setting")
    assert settings.packets == (() if key == b"sender/off" else (b"setting",))
