"""The options that every command takes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sbusctl.application import application
from sbusctl.settings import Settings, with_json_flag


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
    assert ": --system, --user and --address are mutually exclusive\n" in result.stderr
    assert "invalid value" not in result.stderr
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
    ("address", "error"),
    [
        ("", "the address is empty"),
        ("/" + "x" * 200, f"invalid address '/{'x' * 200}': has 201 bytes; the path of a socket has at most 107"),
        (
            "/dev/unix/abstract",
            "cannot connect to /dev/unix/abstract: only sbusd can use this form; use the address that it printed",
        ),
    ],
)
@pytest.mark.parametrize("command", ["whoami", "doctor"])
def test_an_invalid_address_is_an_invalid_option(missing: str, address: str, error: str, command: str) -> None:
    result = CliRunner().invoke(application(), ["-a", address, command], prog_name="sbusctl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0] == f"sbusctl: {error}"


def test_an_empty_address_in_the_environment_is_none(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBUS_ADDRESS", "")
    assert Settings().bus_address() == "/run/sbus.socket"


@pytest.mark.parametrize("style", ["", "yes", "SHORT"])
def test_an_invalid_json_style_is_reported_with_the_valid_ones(missing: str, style: str) -> None:
    result = CliRunner().invoke(application(), ["whoami", f"--json={style}"])
    assert result.exit_code == 2
    assert "short" in result.stderr
    assert "pretty" in result.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--json connections", "-j connections"),
        ("connections --json", "connections -j"),
        ("--json=short whoami", "--json=short whoami"),
        ("pub -- --json", "pub -- --json"),
        ("--json pub k -- --json", "-j pub k -- --json"),
        ("--json short", "-j short"),
    ],
)
def test_the_style_of_json_can_be_omitted_and_is_never_the_next_word(line: str, expected: str) -> None:
    assert with_json_flag(line.split()) == expected.split()
