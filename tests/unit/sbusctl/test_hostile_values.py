"""Values at and beyond the limits of every option and argument of sbusctl(1): an error that names the option without quotes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from sbusctl.application import application
from sbusctl.group import CALLABLE, command_function
from sbusctl.settings import MAX_SECONDS

_SPELLINGS = ("+5", "1_0", " 5", "5 ", "5\n", "٥", "1e0", ".5", "5.", "0x5")
_SECONDS = ("inf", "-inf", "nan", "1e308", "1e400", "-1", "", "x", "1s", "\udcff", "9" * 400, *_SPELLINGS)
_COUNTS = ("-1", "1.5", "inf", "nan", "", "x", "\udcff", "1e3", *_SPELLINGS)
_TEXTS = ("", "\udcff", "\x1b[2J", "é", "x" * 100_000, "*", "/", "!/x", "a\nb")

_BASES = {
    "blob get": "t",
    "blob drop": "t",
    "call": "c d",
    "completion": "bash",
    "explain": "root publish k",
    "link config": "--realm R a",
    "members": "k",
    "pub": "k v",
    "replay": "/nonexistent",
    "serve": "c --exec cat",
    "store put": "k v",
    "store last": "p",
    "store read": "s",
    "store peek": "s --queue",
    "store work": "q true",
    "store purge": "s",
    "store forget": "s k",
    "store revive": "q 1",
    "sub": "p",
    "trace": "k",
}
"""Valid arguments of the commands that require some."""


def _command(name: str) -> Any:
    command: Any = typer.main.get_command(application())
    for word in name.split():
        command = command.get_command(None, word)
    return command


def _lines(name: str) -> Iterator[tuple[list[str], str, bool]]:
    """Yield command lines, the option that has a hostile value, and whether the value is certainly invalid."""
    base = _BASES.get(name, "").split()
    hints = get_type_hints(command_function(name))
    for each in _command(name).params:
        if each.param_type_name == "argument":
            for place in range(len(base)):
                yield from (([*name.split(), *base[:place], value, *base[place + 1 :]], "", False) for value in _TEXTS)
        elif not each.is_flag:
            option = max(each.opts, key=len)
            kinds = {hints.get(each.name), *get_args(hints.get(each.name))}
            values = _SECONDS if float in kinds else _COUNTS if int in kinds else _TEXTS
            more = ["--blob", "/nonexistent"] if option in ("--type", "--expire") and name == "pub" else []
            more += ["--twin", "1"] if option == "--retries" else []
            words = [*base[:1], *more] if more[:1] == ["--blob"] else [*base, *more]
            yield from (([*name.split(), *words, f"{option}={value}"], option, values is not _TEXTS) for value in values)


@pytest.mark.parametrize("name", CALLABLE)
def test_each_number_of_seconds_has_a_maximum(name: str) -> None:
    """sbusctl(1), OPTIONS: a year unless another one is stated."""
    hints = get_type_hints(command_function(name), include_extras=True).values()
    declared = [each for hint in hints for each in getattr(hint, "__metadata__", ())]
    without = [each.param_decls for each in declared if each.metavar == "SECONDS" and not (each.max and each.max <= MAX_SECONDS)]
    assert without == []


@pytest.mark.parametrize("name", CALLABLE)
def test_a_hostile_value_is_an_error_with_a_name(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("SBUS_ADDRESS", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    monkeypatch.setattr("sbus.bus_socket.SYSTEM_ADDRESS", str(tmp_path / "none"))
    monkeypatch.setattr("sbusctl.payloads.is_without_data", lambda _source: True)
    monkeypatch.chdir(tmp_path)
    wrong = []
    for line, option, is_invalid in _lines(name):
        result = CliRunner().invoke(application(), line)
        first = result.stderr.partition("\n")[0]
        longest = max(map(len, result.stderr.splitlines()), default=0)
        is_raised = result.exception is not None and not isinstance(result.exception, SystemExit)
        is_named = result.exit_code == 2 and option in first and first.isprintable() and f"'{option}'" not in first
        if is_raised or "internal error" in result.stderr or longest > 500 or (is_invalid and not is_named):
            wrong.append((" ".join(line)[:200], result.exit_code, first[:300], repr(result.exception)))
    assert wrong == []
