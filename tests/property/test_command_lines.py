"""What is read of a command line without typer's converters is what typer reads of it; what typer refuses is left to typer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import astuple
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sbusctl.application import application
from sbusctl.command_line import read_call
from sbusctl.group import command_function, module_of
from sbusctl.settings import settings_of, with_json_flag

_NAMES = ("whoami", "pub", "sub", "call", "ping", "members", "store put", "store purge", "store last", "link sync", "blob list")
_WORDS = st.sampled_from([
    *("a", "", "-", "--", "b c", "é", "\udcff", "-1", "0", "1", "3", "1.5", "1e3", "nan", "007", "4294967296", "short", "pretty", "sub"),
    *("-a", "/x", "--address", "--address=/y", "--address=", "-a/x", "--system", "--user", "--system=1", "--sys"),
    *("-j", "--json", "--json=short", "--json=off", "--json=x", "--no-legend", "--no-pager", "-h", "--help"),
    *("-n", "-n5", "--count", "--count=2", "--count=0", "--timeout", "--timeout=2", "--timeout=-1", "--timeout=0.5", "-c", "-i"),
    *("--raw", "-0", "--null", "-l", "-l0", "--lines", "--format", "-F", "--format=%k", "--all", "--twin", "--twin=1", "--retries=1"),
    *("--queue", "--before=2", "--match", "--id=a", "--delay=1.5", "--expire"),
])  # fmt: skip

Called = tuple[str, dict[str, Any], tuple[object, ...]]


@pytest.fixture(scope="module")
def calls() -> Iterator[list[Called]]:
    """The calls of commands, which do nothing else: name, values, common options."""
    made: list[Called] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in _NAMES:
            recorder = _recorder(name, command_function(name), made)
            command, _, action = name.partition(" ")
            function = f"{action}_action" if action else f"{command}_command"
            patch.setattr(import_module(module_of(command)), function, recorder)
        yield made


def _recorder(name: str, command: Callable[..., object], made: list[Called]) -> Callable[..., object]:
    """Return a command with the parameters of *command* that notes how it is called."""

    defaults = getattr(command, "__kwdefaults__", None) or {}

    def record(context: Any, **values: Any) -> None:
        made.append((name, {**defaults, **values}, astuple(settings_of(context))))

    functools.update_wrapper(record, command)
    record.__kwdefaults__ = defaults
    return record


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(front=st.lists(_WORDS, max_size=2), name=st.sampled_from(_NAMES), rest=st.lists(_WORDS, max_size=5))
@example([], "sub", ["--count", "3", "a"])
@example(["-j"], "whoami", ["--json=off"])
@example(["--json=short"], "whoami", ["-j"])
@example(["--system"], "whoami", ["--user"])
@example([], "call", ["--twin", "4294967296", "a"])
@example([], "pub", ["--", "-l", "--"])
@example(["-j"], "store purge", ["--queue", "a"])
def test_both_read_the_same(calls: list[Called], front: list[str], name: str, rest: list[str]) -> None:
    line = with_json_flag([*front, *name.split(), *rest])
    read = read_call(line)
    if read is None:
        return
    calls.clear()
    read.run()
    result = CliRunner().invoke(application(), line)
    assert result.exit_code == 0, result.output
    plain, typers = calls
    assert plain == typers


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("whoami", {}),
        ("-a /x -j whoami", {}),
        ("pub k", {"key": "k"}),
        ("pub -l -0 k -", {"key": "k", "payload": "-", "lines": True, "null": True}),
        ("sub --format=%p a -n 3 --timeout 1.5 b", {"patterns": ["a", "b"], "template": "%p", "count": 3, "timeout": 1.5}),
        ("call --twin 7 c d", {"name": "c", "data": "d", "twin": 7}),
        ("store -j put --id i c d", {"key": "c", "payload": "d", "ident": "i"}),
    ],
)
def test_common_command_lines_are_parsed_without_typer(calls: list[Called], line: str, expected: dict[str, object]) -> None:
    read = read_call(line.split())
    assert read is not None
    calls.clear()
    read.run()
    ((name, values, _),) = calls
    assert set(name.split()) <= set(line.split())
    assert values.items() >= expected.items()
