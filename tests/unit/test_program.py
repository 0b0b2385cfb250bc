"""The check of a configuration, and the status of each error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbusd.config.files import ConfigError
from sbusd.program import check_configuration, failing_with_status
from sbusd.protocol.errors import SbusError

FILE = Path("/tmp/a.toml")


class _PermanentError(SbusError, ValueError):
    pass


def test_a_checked_configuration_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    checked: list[str] = []
    check_configuration("sbus-some", FILE, lambda: checked.append("once"))
    assert (checked, capsys.readouterr().out) == (["once"], "configuration is valid\n")


def test_an_error_of_the_check_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    def check() -> None:
        raise ConfigError(FILE, "key", "wrong")

    with pytest.raises(ConfigError, match="key"):
        check_configuration("sbus-some", FILE, check)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("error", "permanent", "status"),
    [
        (ConfigError(FILE, "key", "wrong"), (), os.EX_CONFIG),
        (_PermanentError("wrong"), (ValueError,), os.EX_CONFIG),
        (_PermanentError("wrong"), (), 1),
        (SbusError("wrong"), (ValueError,), 1),
    ],
)
def test_an_error_has_a_status(
    error: SbusError, permanent: tuple[type[Exception], ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end, failing_with_status("sbus-some", *permanent):
        raise error
    assert (end.value.code, capsys.readouterr().err) == (status, f"sbus-some: {error}\n")


def test_other_errors_are_raised() -> None:
    with pytest.raises(ValueError, match="wrong"), failing_with_status("sbus-some", ValueError):
        raise ValueError("wrong")
