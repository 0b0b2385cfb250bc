"""An option of a service program is used in a mode, or refused with status 2. The options are those of the real parsers.

sbusd itself is not here: sbusd --check-config checks the whole command line, and its other options all have effects at the same time.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

_BUS = "address system user"
_FILE = "config check"

_MODES: dict[tuple[str, str], dict[str, str]] = {
    ("sbus_services.blob", ""): {"": f"{_FILE} user listen", "--check": f"{_FILE} user"},
    ("sbus_services.link", ""): {"": _FILE, "--check": _FILE},
    ("sbus_services.metrics", ""): {"": f"{_FILE} listen", "--check": _FILE},
    ("sbus_services.store", ""): {"": f"{_FILE} user", "--check": f"{_FILE} user"},
    ("sbus_services.trigger", ""): {"": f"{_FILE} user", "--check": f"{_FILE} user"},
    ("sbus_archive.recorder", ""): {"": f"{_FILE} {_BUS} verbose", "--check": f"{_FILE} user"},
    ("sbus_services.relay", ""): {
        "": f"{_FILE} twin redis substrate network debug",
        "--check": f"{_FILE} twin redis substrate network",
    },
    ("sbus_archive.shipping", ""): {"": f"{_FILE} once claim", "--check": _FILE, "--once": "config once", "--claim": "config claim"},
    ("sbus_archive.pipeline", ""): {"": "archive tables master rebuild quiet"},
    ("sbus_archive.pipeline.live", ""): {"": f"{_FILE} address state tables show", "--check": _FILE, "--show": "show minutes state"},
    ("sbus_services.web", ""): {
        "": f"{_BUS} listen allow allow_publish read_only url_file max_sessions max_patterns queue_size",
        "--read-only": f"{_BUS} listen allow read_only url_file max_sessions max_patterns queue_size",
    },
    ("sbus_services.feeds", "netlink"): {"": f"{_BUS} namespace receive_buffer"},
    ("sbus_services.feeds", "journal"): {
        "": f"{_BUS} lines rate cursor_file directory public",
        "--cursor-file f": f"{_BUS} lines rate backlog directory public",
    },
    ("sbus_services.feeds", "udev"): {"": f"{_BUS} subsystem receive_buffer rate"},
    ("sbus_services.feeds", "systemd"): {"": f"{_BUS} dbus_address rate"},
    ("sbus_services.feeds", "logind"): {"": f"{_BUS} dbus_address rate remote_hosts"},
    ("sbus_services.feeds", "dbus"): {"": f"{_BUS} dbus_address {_FILE}", "--check": f"{_FILE} user system"},
}
"""For each program its modes, as options that choose the mode, and the parameters that have an effect in that mode."""


def _command(program: str, command: str) -> Any:
    """Return a command of a program, as typer has it."""
    made: Any = typer.main.get_command(import_module(f"{program}.main").app)
    return made.get_command(None, command) if command else made


def _parameters(program: str, command: str) -> list[Any]:
    """Return the options of a program, as typer has them."""
    return [
        each for each in _command(program, command).params if each.param_type_name == "option" and each.name not in ("_version", "version")
    ]


@pytest.mark.parametrize("program", _MODES, ids=lambda program: ".".join(program).strip("."))
def test_every_option_is_declared(program: tuple[str, str]) -> None:
    declared = {name for used in _MODES[program].values() for name in used.split()}
    assert declared == {str(each.name) for each in _parameters(*program)} | declared & {"cursor_file"}


@pytest.mark.parametrize("program", _MODES, ids=lambda program: ".".join(program).strip("."))
def test_an_option_without_an_effect_is_refused(program: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    module, command = program
    for mode, used in _MODES[program].items():
        for each in _parameters(*program):
            option = max(each.opts, key=len)
            if each.name in used.split() or option in mode.split():
                continue
            line = [*command.split(), *mode.split(), option, *([] if each.is_flag else ["1min" if each.name == "backlog" else "1"])]
            result = CliRunner().invoke(import_module(f"{module}.main").app, line)
            assert (result.exit_code, option in result.stderr.splitlines()[0]) == (2, True), (line, result.stderr)


@pytest.mark.parametrize("program", _MODES, ids=lambda program: ".".join(program).strip("."))
def test_errors_name_an_option_without_quotes(program: tuple[str, str]) -> None:
    module, command = program
    for each in _parameters(*program):
        option = max(each.opts, key=len)
        line = [*command.split(), f"{option}=1" if each.is_flag else option]
        first = CliRunner().invoke(import_module(f"{module}.main").app, line).stderr.splitlines()[0]
        assert f"option {option} {'does not take a value' if each.is_flag else 'requires an argument'}" in first, line


@pytest.mark.parametrize("program", _MODES, ids=lambda program: ".".join(program).strip("."))
def test_an_empty_value_is_never_an_omitted_one(program: tuple[str, str]) -> None:
    module, command = program
    for each in _parameters(*program):
        if each.is_flag or (each.multiple and each.metavar == "PATTERN"):
            continue
        option = max(each.opts, key=len)
        result = CliRunner().invoke(import_module(f"{module}.main").app, [*command.split(), option, ""])
        first = result.stderr.splitlines()[0]
        assert (result.exit_code, option in first, "empty" in first or "''" in first) == (2, True, True), (option, result.stderr)


def _numbers(program: str, command: str) -> list[Any]:
    """Return the options of a program whose values are numbers."""
    hints = get_type_hints(_function(program, command))
    return [each for each in _parameters(program, command) if {int, float} & {hints[each.name], *get_args(hints[each.name])}]


def _function(program: str, command: str) -> Any:
    """Return the function of a command."""
    (found,) = (
        each.callback
        for each in import_module(f"{program}.main").app.registered_commands
        if not command or command == (each.name or each.callback.__name__)
    )
    return found


@pytest.mark.parametrize("value", ["+5", "1_0", " 5", "5 ", "٥", "1e0", "5.", "0x5"])
@pytest.mark.parametrize("program", _MODES, ids=lambda program: ".".join(program).strip("."))
def test_numbers_have_plain_digits(program: tuple[str, str], value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """tests/unit/sbusctl/test_hostile_values.py has the same values for sbusctl."""
    for each in _numbers(*program):
        option = max(each.opts, key=len)
        with pytest.raises(typer.Exit) as ended:
            _command(*program).make_context("program", [f"{option}={value}"])  # which only parses: the program would run
        (first, *_) = capsys.readouterr().err.splitlines()
        assert ended.value.exit_code == 2
        assert option in first
        assert first.endswith(f"{value!r} is not a whole number"), first


def test_the_numeric_options_are_found() -> None:
    found = {(*program, max(each.opts, key=len)) for program in _MODES for each in _numbers(*program)}
    assert found >= {
        ("sbus_services.relay", "", "--twin"),
        ("sbus_services.web", "", "--max-sessions"),
        ("sbus_services.feeds", "udev", "--rate"),
        ("sbus_archive.pipeline.live", "", "--minutes"),
    }
