"""The group of commands: lazy, helpful, and never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from sbus.protocol.errors import SbusError
from sbusctl.application import application
from sbusctl.group import ACTIONS, CALLABLE, COMMANDS, module_of


@pytest.mark.parametrize("name", [*ACTIONS, *CALLABLE])
def test_every_command_has_help_with_the_common_options(name: str) -> None:
    result = CliRunner().invoke(application(), [*name.split(), "-h"])
    assert result.exit_code == 0
    assert f"Usage: root {name} " in result.stdout
    for option in ("--system", "--user", "--address", "--json", "--no-legend", "--no-pager"):
        assert option in result.stdout


def test_the_help_lists_every_command() -> None:
    result = CliRunner().invoke(application(), ["--help"])
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.partition("Commands:")[2].splitlines() if line.startswith("  ") and line[2] != " "]
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_descriptions(name: str) -> None:
    group = typer.main.get_command(application())
    command = group.get_command(typer.Context(group), name)  # type: ignore[attr-defined]  # it is the group
    assert command.get_short_help_str(200) == COMMANDS[name]


@pytest.mark.parametrize("name", ACTIONS)
def test_the_help_of_a_command_lists_its_actions_with_their_descriptions(name: str) -> None:
    result = CliRunner().invoke(application(), [name, "--help"])
    listed = [line.split(maxsplit=1) for line in result.stdout.partition("Actions:")[2].splitlines() if line.strip()]
    assert dict(listed) == ACTIONS[name]
    group = typer.main.get_command(application()).get_command(None, name)  # type: ignore[attr-defined]  # it is a group
    assert {action: group.get_command(None, action).get_short_help_str(200) for action in ACTIONS[name]} == ACTIONS[name]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("store", "store: missing action; use streams, put"),
        ("store purg x", "unknown action 'purg'; did you mean 'purge'?"),
        ("relay xyz", "unknown action 'xyz'; use status"),
        ("store purge mail --state dead", "--state is not an option of purge; it is one of peek"),
        ("store put mail/x y --state dead", "--state is not an option of put; it is one of peek"),
        ("store --queue peek mail", "--queue is an option of peek and purge; write it after the action"),
        ("link status --realm r", "--realm is not an option of status; it is one of config"),
        ("blob list -o file", "-o is not an option of list; it is one of get"),
        ("help", "use 'sbusctl --help'"),
        ("help pub", "use 'sbusctl pub --help'"),
    ],
)
def test_an_action_has_its_own_options_only(line: str, words: str) -> None:
    result = CliRunner().invoke(application(), line.split())
    assert result.exit_code == 2
    assert words in result.stderr


def test_an_unknown_command_is_met_with_a_suggestion() -> None:
    result = CliRunner().invoke(application(), ["conections"])
    assert result.exit_code == 2
    assert "Did you mean 'connections'" in result.stderr


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (SbusError("it\nis \x1b off"), 1, "sbusctl: it\\nis \\x1b off\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "sbusctl: /x: Permission denied\n"),
    ],
)
def test_an_exception_of_a_command_is_a_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, said: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("sbusctl.settings.Settings.connect", fail)
    result = CliRunner().invoke(application(), ["whoami"])
    assert (result.exit_code, result.stderr, result.stdout) == (status, said, "")


@pytest.mark.slow
def test_a_command_imports_no_other_and_nothing_slow() -> None:
    code = (
        "import sys; from sbusctl.application import application\n"
        "try: application()(['pub', '--help'], prog_name='sbusctl')\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stderr.split())
    # Not pydantic: typer itself imports it, from version 0.29 on.
    assert "sbusctl.commands.pub" in modules
    assert {module_of(name) for name in COMMANDS if name != "pub"}.isdisjoint(modules)
    assert modules.isdisjoint({"rich", "asyncio", "pyroute2", "systemd", "pygments", "sbus_programs.config"})
