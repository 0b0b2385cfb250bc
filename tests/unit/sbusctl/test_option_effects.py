"""An option of sbusctl(1) is used, or it is refused with status 2: for every command, in every mode, every option.

The options are those of the real parsers. An option that is not declared in the table below must be refused, so a new option fails here
until it is declared in each mode in which it has an effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from sbusctl.application import application
from sbusctl.group import CALLABLE

_BUS = "--system --user --address"
_OUT = f"--json {_BUS}"

_EVERYWHERE = {"--no-legend", "--no-pager"}
"""Commands without headings and pages never print them, so these options hold there too; sbusctl(1)."""

_RECORD = "--archive --pattern --timeout --count --keep"
_BENCH = "--clients --subscribers --size --coalesce --round-trips"
_CONFIG = "--listen --certificate --key --authority --nkey"
_REPORT = "--tables --output --hours"

_MODES: dict[str, dict[str, str]] = {
    "pub": {
        "k v": f"--wait --to --receipt {_BUS}",
        "k": f"--wait --to --receipt --lines --blob {_BUS}",
        "k v --receipt": f"--wait --to {_OUT}",
        "k --lines": f"--wait --to --null {_BUS}",
        "k --blob FILE": f"--wait --type --expire {_BUS}",
    },
    "sub": {
        "p": f"--count --timeout --format --raw --latest --group --blobs --reconnect --null {_OUT}",
        "p --raw": f"--count --timeout --latest --group --blobs --reconnect --null {_BUS}",
        "p --format %k": f"--count --timeout --latest --group --blobs --reconnect --null {_BUS}",
    },
    "blob get": {"t": f"--host --output {_BUS}"},
    "blob list": {"": _OUT},
    "blob drop": {"t": _BUS},
    "blob stats": {"": _OUT},
    "call": {
        "c d": f"--all --timeout --twin {_OUT}",
        "c d --all": f"--timeout {_OUT}",
        "c d --twin 1": f"--timeout --retries {_OUT}",
    },
    "serve": {"c --exec cat": f"--max-concurrent --timeout --allow-user --allow-group --allow-twin {_BUS}"},
    "members": {"k": _OUT},
    "monitor": {"": f"--count --timeout --filter-user --filter-pid --filter-unit {_OUT}"},
    "presence": {"": f"--count --timeout {_OUT}"},
    "connections": {"": _OUT},
    "top": {
        "": f"--by-uid --link --once --count --interval --sort {_OUT}",
        "--by-uid": f"--once --count --interval --sort {_OUT}",
        "--link": f"--once --count --interval --sort {_OUT}",
        "--once": f"--by-uid --link --interval --sort {_OUT}",
    },
    "stats": {"": f"--openmetrics --textfile {_OUT}", "--openmetrics": _BUS, "--textfile FILE": _BUS},
    "trace": {"k": _OUT},
    "explain": {"root publish k": f"--unit {_OUT}"},
    "doctor": {"": _OUT},
    "ping": {"": f"--count --interval {_OUT}"},
    "bench": {"": f"{_BENCH} --count --duration {_OUT}", "--count 1": f"{_BENCH} {_OUT}", "--duration 1": f"{_BENCH} {_OUT}"},
    "record": {"": f"{_RECORD} {_OUT}"},
    "replay": {"DIR": f"--speed --key --host {_OUT}"},
    "report": {
        "": f"{_REPORT} --open --now --json",
        "--now": f"{_REPORT} --open --archive {_OUT}",
        "--output -": "--tables --hours --now",
    },
    "relay status": {"": "--redis --json"},
    "link status": {"": f"--timeout {_OUT}"},
    "link sync": {"": f"--timeout {_BUS}"},
    "link config": {"--realm R a": _CONFIG},
    "store streams": {"": f"--twin {_OUT}"},
    "store put": {"k v": f"--id --delay --expire {_OUT}"},
    "store last": {"p": f"--count --twin {_OUT}"},
    "store read": {"s": f"--reader --from --match --follow --count --twin {_OUT}"},
    "store peek": {"s": f"--queue --count {_OUT}", "q --queue": f"--state --count {_OUT}"},
    "store work": {"q true": f"--count --timeout {_BUS}"},
    "store purge": {"s": f"--queue --before --match {_OUT}", "q --queue": _OUT, "s --before 1": f"--match {_OUT}"},
    "store forget": {"s k": _OUT},
    "store revive": {"q 1": _OUT},
    "store acknowledge": {"": _OUT},
    "whoami": {"": _OUT},
    "version": {"": _OUT},
    "completion": {"bash": ""},
}
"""For each command its modes, as arguments that choose the mode, and the options that have an effect in that mode."""

_VALUES = {"--sort": "lost", "--size": "64", "--keep": "none", "--json": "short", "--from": "1", "--state": "dead", "--allow-twin": "1"} | {
    "--listen": "127.0.0.1:1",
    "--nkey": "a=" + "U" + "A" * 55,
    "--allow-user": "root",
    "--allow-group": "root",
    "--filter-user": "root",
    "--filter-unit": "a.service",
    "--unit": "a.service",
    "--textfile": "/nonexistent/x.prom",
    "--tables": "/nonexistent",
    "--archive": "/nonexistent",
    "--redis": "/nonexistent",
    "--address": "/nonexistent",
    "--format": "%k",
}
"""A valid value, where it is not that of the metavariable."""

_METAVARS = {"SECONDS": "1", "COUNT": "1", "ID": "1", "NUMBER": "1", "PID": "1", "FACTOR": "1", "FILE": "/nonexistent/f", "DIR": "/tmp"}


class _Case(NamedTuple):
    """A mode with one more option."""

    line: list[str]
    option: str
    has_effect: bool


def _options(name: str) -> list[Any]:
    """Return the options of a command, with the global ones, as typer has them."""
    command: Any = typer.main.get_command(application())
    for word in name.split():
        command = command.get_command(None, word)
    return [each for each in command.params if each.param_type_name == "option" and each.name != "version"]


def _cases(name: str) -> Iterator[_Case]:
    """Yield each mode of a command with each option that the mode does not choose itself."""
    for mode, used in _MODES[name].items():
        words = [{"FILE": "/nonexistent/f.prom", "DIR": "/nonexistent"}.get(word, word) for word in mode.split()]
        for each in _options(name):
            option = max(each.opts, key=len)
            if option in words or option == "-j":
                continue
            value = [] if each.is_flag else [_VALUES.get(option, _METAVARS.get(each.metavar, "a"))]
            yield _Case([*name.split(), *words, option, *value], option, option in used.split() or option in _EVERYWHERE)


def test_every_command_is_in_the_table() -> None:
    assert set(_MODES) == set(CALLABLE)
    for name, modes in _MODES.items():
        known = {option for each in _options(name) for option in each.opts}
        assert {word for used in modes.values() for word in used.split()} <= known, name


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLABLE)
def test_an_option_has_an_effect_or_is_refused(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # No bus: a line whose options are valid ends with another status than 2, or successfully.
    for variable in ("SBUS_ADDRESS", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    monkeypatch.setattr("sbus.bus_socket.SYSTEM_ADDRESS", str(tmp_path / "none"))
    monkeypatch.setattr("sbusctl.payloads.is_without_data", lambda _source: True)
    monkeypatch.chdir(tmp_path)
    wrong = []
    for case in _cases(name):
        result = CliRunner().invoke(application(), case.line)
        said = result.stderr.splitlines()[0] if result.stderr else ""
        is_refused = result.exit_code == 2 and case.option in said
        if is_refused is case.has_effect or (result.exit_code == 2) is not is_refused:
            wrong.append((" ".join(case.line), case.has_effect, result.exit_code, said or repr(result.exception)))
    assert not wrong


_MEANS_SOMETHING = {"KEY", "PATTERN", "PAYLOAD", "DATA", "ARG"}
"""Metavariables of arguments that can be empty, sbusctl(1); a command to run is looked up instead."""


@pytest.mark.parametrize("name", CALLABLE)
def test_an_empty_value_is_never_an_omitted_one(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SBUS_ADDRESS", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    command: Any = typer.main.get_command(application())
    for word in name.split():
        command = command.get_command(None, word)
    mode, *_ = _MODES[name]
    lines = [([*name.split(), *mode.split(), f"{max(each.opts, key=len)}="], each) for each in _options(name) if not each.is_flag]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    values = {"USER": "root", "ACTION": "publish", "SHELL": "bash", "NUMBER": "1"}
    options = [word for word in mode.split() if word.startswith("--")]
    for place, each in enumerate(arguments):
        if each.metavar not in _MEANS_SOMETHING and (name, each.metavar) != ("store work", "COMMAND"):
            words = ["" if other == place else values.get(found.metavar, "a") for other, found in enumerate(arguments)]
            lines.append(([*name.split(), *mode.split()[: mode.split().index(options[0]) + 2 if options else 0][-2:], *words], each))
    for line, each in lines:
        result = CliRunner().invoke(application(), line)
        shown = max(each.opts, key=len) if each.param_type_name == "option" else each.metavar
        first = result.stderr.splitlines()[0]
        is_named = shown in first or shown == "--address"
        assert (result.exit_code, is_named, "empty" in first or "''" in first) == (2, True, True), (line, first)


def test_an_empty_address_before_the_command_is_refused() -> None:
    result = CliRunner().invoke(application(), ["--address", "", "stats"])
    assert (result.exit_code, "the address is empty" in result.stderr) == (2, True)
