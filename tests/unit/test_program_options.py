"""An option of a service program is used in a mode, or refused with status 2. The options are those of the real parsers.

sbusd itself is not here: sbusd --check-config checks the whole command line, and its other options all have effects at the same time.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

_BUS = "address system user"
_FILE = "config check"

_MODES: dict[tuple[str, str], dict[str, str]] = {
    ("blob", ""): {"": f"{_FILE} user listen", "--check": f"{_FILE} user"},
    ("link", ""): {"": _FILE, "--check": _FILE},
    ("metrics", ""): {"": f"{_FILE} listen", "--check": _FILE},
    ("store", ""): {"": f"{_FILE} user", "--check": f"{_FILE} user"},
    ("trigger", ""): {"": f"{_FILE} user", "--check": f"{_FILE} user"},
    ("recorder", ""): {"": f"{_FILE} {_BUS} verbose", "--check": f"{_FILE} user"},
    ("relay", ""): {
        "": f"{_FILE} twin redis substrate network debug",
        "--check": f"{_FILE} twin redis substrate network",
    },
    ("shipping", ""): {"": f"{_FILE} once claim", "--check": _FILE, "--once": "config once", "--claim": "config claim"},
    ("pipeline", ""): {"": "archive tables master rebuild quiet"},
    ("pipeline.live", ""): {"": f"{_FILE} address state tables show", "--check": _FILE, "--show": "show minutes state"},
    ("web", ""): {
        "": f"{_BUS} listen allow allow_publish read_only url_file max_sessions max_patterns queue_size",
        "--read-only": f"{_BUS} listen allow read_only url_file max_sessions max_patterns queue_size",
    },
    ("feeds", "netlink"): {"": f"{_BUS} namespace receive_buffer"},
    ("feeds", "journal"): {
        "": f"{_BUS} lines rate cursor_file directory public",
        "--cursor-file f": f"{_BUS} lines rate backlog directory public",
    },
    ("feeds", "udev"): {"": f"{_BUS} subsystem receive_buffer rate"},
    ("feeds", "systemd"): {"": f"{_BUS} dbus_address rate"},
    ("feeds", "logind"): {"": f"{_BUS} dbus_address rate remote_hosts"},
    ("feeds", "dbus"): {"": f"{_BUS} dbus_address {_FILE}", "--check": f"{_FILE} user system"},
}
"""For each program its modes, as options that choose the mode, and the parameters that have an effect in that mode."""


def _parameters(program: str, command: str) -> list[Any]:
    """Return the options of a program, as typer has them."""
    made: Any = typer.main.get_command(import_module(f"sbusd.{program}.main").app)
    if command:
        made = made.get_command(None, command)
    return [each for each in made.params if each.param_type_name == "option" and each.name not in ("_version", "version")]


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
            result = CliRunner().invoke(import_module(f"sbusd.{module}.main").app, line)
            assert (result.exit_code, option in result.stderr.splitlines()[0]) == (2, True), (line, result.stderr)


@pytest.mark.parametrize("program", _MODES, ids=lambda program: ".".join(program).strip("."))
def test_errors_name_an_option_without_quotes(program: tuple[str, str]) -> None:
    module, command = program
    for each in _parameters(*program):
        option = max(each.opts, key=len)
        line = [*command.split(), f"{option}=1" if each.is_flag else option]
        first = CliRunner().invoke(import_module(f"sbusd.{module}.main").app, line).stderr.splitlines()[0]
        assert f"option {option} {'does not take a value' if each.is_flag else 'requires an argument'}" in first, line


@pytest.mark.parametrize("program", _MODES, ids=lambda program: ".".join(program).strip("."))
def test_an_empty_value_is_never_an_omitted_one(program: tuple[str, str]) -> None:
    module, command = program
    for each in _parameters(*program):
        if each.is_flag or (each.multiple and each.metavar == "PATTERN"):
            continue
        option = max(each.opts, key=len)
        result = CliRunner().invoke(import_module(f"sbusd.{module}.main").app, [*command.split(), option, ""])
        first = result.stderr.splitlines()[0]
        assert (result.exit_code, option in first, "empty" in first or "''" in first) == (2, True, True), (option, result.stderr)
