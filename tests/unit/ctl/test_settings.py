"""The options that every command takes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sbusd.ctl.main import application
from sbusd.ctl.settings import Settings


@pytest.fixture
def missing(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address where no bus is, which is also what the environment names."""
    address = f"{tmp_path}/none"
    monkeypatch.setenv("SBUS_ADDRESS", address)
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"{tmp_path}/run")
    return address


@pytest.mark.parametrize(
    "arguments",
    [
        ["--system", "--user", "whoami"],
        ["--user", "whoami", "--system"],
        ["whoami", "--address", "/x", "--user"],
        ["-a", "/x", "whoami", "-a", "/y"],
        ["--system", "whoami", "--address", ""],
    ],
)
def test_two_buses_are_one_too_many(missing: str, arguments: list[str]) -> None:
    result = CliRunner().invoke(application(), arguments)
    assert result.exit_code == 2
    assert "--system, --user and --address are mutually exclusive" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["--user", "whoami"], ["whoami", "--user"], ["--user", "whoami", "--user"]])
def test_options_stand_before_or_behind_the_command(missing: str, tmp_path: object, arguments: list[str]) -> None:
    result = CliRunner().invoke(application(), arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"sbusctl: cannot connect to {tmp_path}/run/sbus.socket: no such socket")
    assert result.stderr.count("\n") == 1


def test_without_an_option_the_environment_names_the_bus(missing: str) -> None:
    assert Settings().bus_address() == missing
    assert Settings(scope="system").bus_address() == "/run/sbus.socket"
    assert Settings(address="/x").bus_address() == "/x"


@pytest.mark.parametrize(
    ("address", "reason"), [("", "is empty"), ("/" + "x" * 200, "at most 107"), ("/dev/unix/abstract", "only a server")]
)
def test_a_wrong_address_is_one_line(missing: str, address: str, reason: str) -> None:
    result = CliRunner().invoke(application(), ["-a", address, "whoami"])
    assert result.exit_code == 1
    assert result.stderr.startswith("sbusctl: ")
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr


@pytest.mark.parametrize("style", ["", "yes", "SHORT"])
def test_a_wrong_style_of_json_is_told_with_the_right_ones(missing: str, style: str) -> None:
    result = CliRunner().invoke(application(), ["whoami", f"--json={style}"])
    assert result.exit_code == 2
    assert "short" in result.stderr
    assert "pretty" in result.stderr
