"""sbusctl(1) starts without what it does not need: no test of its speed, but of what makes it slow."""

from __future__ import annotations

import subprocess

import pytest

from sbusctl.group import module_of
from tests.support.daemons import Daemon
from tests.support.shell import TIMEOUT_SECONDS, Shell, running
from tools.stage import Stage

_NOT_IMPORTED = {
    *("pydantic", "pydantic_core", "annotated_types", "asyncio", "logging", "rich", "pygments", "importlib.metadata", "http", "email"),
    *("pyarrow", "pyroute2", "systemd", "redis", "aiohttp", "zipfile", "decimal", "tomllib"),
    *(
        "sbus.asyncio.bus",
        "sbus.rpc.caller_access",
        "sbus.rpc.service",
        "sbus.sync.server",
    ),
    *(
        "sbus_programs.config",
        "sbus_programs.systemd.log_records",
        "sbus_archive.record",
        "sbus_archive.recorder",
        "sbus_services.relay",
        "sbus_archive.report",
        "sbus_archive.tables",
    ),
}


SHARES_BUS = True


@pytest.fixture
def shell(stage: Stage, bus: Daemon) -> Shell:
    return Shell(stage, bus)


_MAIN = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from sbusctl.main import main
main()
"""


def _imported(shell: Shell, *arguments: str) -> set[str]:
    """Run a command, which must succeed, and return the modules that it has imported."""
    command = [shell.stage.python, "-c", _MAIN, *arguments]
    done = subprocess.run(command, input=b"", capture_output=True, check=False, cwd="/", env=shell.env, timeout=TIMEOUT_SECONDS)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    return set(said.split())


@pytest.mark.parametrize("line", ["whoami", "-j whoami", "pub k hello", "sub --timeout 0.05 k", "call greet x"])
def test_a_command_imports_only_what_it_uses(shell: Shell, line: str) -> None:
    with running(shell, "serve", "greet", "--exec", "cat", until="rpc/greet"):
        imported = _imported(shell, *line.split())
    own = {name for name in imported if name.startswith("sbusctl.commands.")}
    assert module_of(next(word for word in line.split() if word[0] != "-")) in own
    assert len(own) == 1
    assert "typer" in imported
    assert not imported & _NOT_IMPORTED


@pytest.mark.parametrize("line", ["connections", "trace k", "members k", "stats", "--json connections", "__complete zsh pub k"])
def test_tables_and_completion_import_only_what_they_use(shell: Shell, line: str) -> None:
    assert not _imported(shell, *line.split()) & _NOT_IMPORTED


def test_the_help_imports_no_command(shell: Shell) -> None:
    imported = _imported(shell, "--help")
    assert not {name for name in imported if name.startswith("sbusctl.commands.")}
    assert not imported & {"asyncio", "rich", "pyarrow", "pyroute2", "redis", "aiohttp", "sbus_programs.config", "sbus_archive.report"}


def test_the_help_of_a_command_imports_no_other(shell: Shell) -> None:
    imported = _imported(shell, "call", "--help")
    assert {name for name in imported if name.startswith("sbusctl.commands.")} == {"sbusctl.commands.call"}
    assert not imported & {"asyncio", "rich", "pyarrow", "pyroute2", "redis", "aiohttp", "sbus_programs.config", "sbus_archive.report"}
