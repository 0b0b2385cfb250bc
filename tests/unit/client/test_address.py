"""Which bus is meant."""

from __future__ import annotations

import pytest

from sbusd.client.address import bus_address
from sbusd.client.errors import NoBus


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBUS_ADDRESS", "/from/environment")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")


def test_an_address_beats_all() -> None:
    assert bus_address("/here", scope="user") == "/here"


def test_a_scope_beats_the_environment() -> None:
    assert bus_address(scope="system") == "/run/sbus.socket"
    assert bus_address(scope="user") == "/run/user/7/sbus.socket"


def test_the_environment_beats_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bus_address() == "/from/environment"
    monkeypatch.setenv("SBUS_ADDRESS", "")
    assert bus_address() == "/run/sbus.socket"
    monkeypatch.delenv("SBUS_ADDRESS")
    assert bus_address() == "/run/sbus.socket"


@pytest.mark.parametrize(("folder", "why"), [(None, "is not set"), ("", "is not set"), ("run", "is not an absolute path")])
def test_a_user_without_runtime_folder_is_told(monkeypatch: pytest.MonkeyPatch, folder: str | None, why: str) -> None:
    if folder is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    with pytest.raises(NoBus, match=r"\$XDG_RUNTIME_DIR " + why):
        bus_address(scope="user")
