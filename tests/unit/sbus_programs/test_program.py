"""The check of a configuration, and the status of each error."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from sbus.protocol.errors import SbusError
from sbus_programs.config.files import ConfigError
from sbus_programs.program import failing_with_status, run_configured

FILE = Path("/tmp/a.toml")


class _PermanentError(SbusError, ValueError):
    pass


def never(loaded: int) -> None:
    """Fail: nothing may call this with what was loaded."""
    pytest.fail(f"called with {loaded}")


def test_a_checked_program_does_not_serve(capsys: pytest.CaptureFixture[str]) -> None:
    checked: list[int] = []
    run_configured("sbus-some", FILE, lambda: 1, never, is_check=True, check=checked.append)
    assert (checked, capsys.readouterr().out) == ([1], "configuration is valid\n")


@pytest.mark.usefixtures("restored_signals")
def test_a_program_serves_with_what_was_loaded_and_ends_at_a_signal(capsys: pytest.CaptureFixture[str]) -> None:
    served: list[int] = []

    def serve(loaded: int) -> None:
        served.append(loaded)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)  # the signal exits here at the latest

    with pytest.raises(SystemExit) as end:
        run_configured("sbus-some", FILE, lambda: 1, serve, is_check=False, check=never)
    assert (end.value.code, served, capsys.readouterr().out) == (0, [1], "")


@pytest.mark.parametrize("is_check", [True, False])
@pytest.mark.usefixtures("restored_signals")
def test_a_permanent_error_has_its_status_in_both(is_check: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> int:
        raise _PermanentError("wrong")

    with pytest.raises(SystemExit) as end:
        run_configured("sbus-some", FILE, load, never, is_check=is_check, permanent=(_PermanentError,))
    assert (end.value.code, capsys.readouterr().out) == (os.EX_CONFIG, "")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.EACCES, "Permission denied", "/a"), "/a: Permission denied"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("of a library"), "of a library"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "no memory is left. Raise MemoryMax= of the unit, or stop other programs"),
    ],
)
def test_an_error_of_the_system_is_one_line(error: OSError, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, failing_with_status("sbus-some"):
        raise error
    assert (end.value.code, capsys.readouterr().err) == (1, f"sbus-some: {line}\n")


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
