"""Completion in bash, zsh and fish on terminals, with names on the bus that other users have chosen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbus.protocol import controls
from tests.support import skips
from tests.support.daemons import Daemon
from tests.support.shell import Shell
from tests.support.terminals import TIMEOUT_SECONDS, Terminal
from tests.support.users import User
from tools.stage import ROOT, Stage

SHELLS = ("bash", "zsh", "fish")

_PROGRAM = """#!/bin/sh
if [ "$1" = __complete ] || [ "$1" = completion ]; then
    exec '{python}' -m sbusctl.main "$@"
fi
printf '%s\\0' "$@" >'{calls}'
echo "called" "sbusctl"
"""
"""A sbusctl that completes, and otherwise writes down its arguments."""

_COMMANDS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "--interactive"],
}

_SETUP = {
    "bash": "PS1='rea''dy> '; set +o history; set -H; eval \"$(sbusctl completion bash)\"; echo set\"up\"\n",
    "zsh": "PS1='rea''dy> '; setopt banghist; autoload -Uz compinit && compinit -Du; eval \"$(sbusctl completion zsh)\"; echo set\"up\"\n",
    "fish": "function fish_prompt; echo 'rea''dy> '; end; sbusctl completion fish | source; echo set\"up\"\n",
}

HOSTILE = (
    "h/$(touch pwned)`touch pwned`",
    "h/';touch pwned;'",
    'h/";touch pwned;"',
    "h/;touch pwned|touch pwned&touch pwned&>pwned",
    "h/a b\\c${HOME}{a,b}[c]?#:b=c@d,e%s%né€",
    "h/!!!touch",
)

"""Each completion starts a program, so each name has several characters that shells interpret."""

SHARES_BUS = True


class Typist:
    """A shell with completion on a terminal, in a folder of its own."""

    def __init__(self, terminal: Terminal, folder: Path) -> None:
        self.terminal = terminal
        self.folder = folder

    def arguments(self, line: str) -> list[str]:
        """Type *line* and Enter, and return the arguments that sbusctl was called with."""
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        before = len(self.terminal.shown)
        self.terminal.type(f"{line}\n")
        self.terminal.wait_for(b"called sbusctl", before)
        return calls.read_bytes().decode().split("\0")[:-1]


@contextmanager
def typing(shell: str, bus: Daemon, folder: Path) -> Iterator[Typist]:
    """Start *shell* with its completion script."""
    skips.require_program(shell, shell)
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "sbusctl"
    program.write_text(_PROGRAM.format(python=sys.executable, calls=folder / "calls"))
    program.chmod(0o755)
    env = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "HOME": str(folder),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "SBUS_ADDRESS": bus.path,
        "SBUS_COMPLETION_TIMEOUT": "60",
        "PWD": str(folder),
    }
    env["PATH"] = f"{programs}:{env['PATH']}"
    command = ["env", f"--chdir={folder}", *_COMMANDS[shell]]
    with Terminal(command, env) as terminal:
        terminal.type(_SETUP[shell])
        terminal.wait_for(b"setup")
        yield Typist(terminal, folder)


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_keys_are_completed_exactly(shell: str, bus: Daemon, first_user: User, tmp_path: Path) -> None:
    client = bus.client(first_user)
    with typing(shell, bus, tmp_path) as typist:
        for key in HOSTILE:
            client.subscribe(key.encode())
            client.barrier()
            for quote in ("", "'", '"'):
                # bash has no way to write an exclamation mark in double quotes.
                if not (shell == "bash" and quote == '"' and "!" in key):
                    assert typist.arguments(f"sbusctl pub {quote}h/\t x") == ["pub", key, "x"]
            client.unsubscribe(key.encode())
    assert sorted(path.name for path in tmp_path.iterdir() if "pwned" in path.name) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_names_that_a_terminal_would_interpret_are_not_shown(shell: str, bus: Daemon, first_user: User, tmp_path: Path) -> None:
    client = bus.client(first_user)
    for key in (b"h/\x1b]0;evil\x07", b"h/evil\nwords", b"h/evil\tx", "h/\u202eevil".encode(), b"h/evil\xff", b"h/good"):
        client.subscribe(key)
    client.barrier()
    with typing(shell, bus, tmp_path) as typist:
        assert typist.arguments("sbusctl pub h/\t x") == ["pub", "h/good", "x"]
        assert b"evil" not in typist.terminal.shown


@pytest.mark.parametrize("shell", SHELLS)
def test_a_key_cannot_become_an_option(shell: str, bus: Daemon, first_user: User, tmp_path: Path) -> None:
    client = bus.client(first_user)
    client.subscribe(b"--address=evil")
    client.barrier()
    with typing(shell, bus, tmp_path) as typist:
        assert typist.arguments("sbusctl pub -- --address=e\t x") == ["pub", "--", "--address=evil", "x"]
        before = len(typist.terminal.shown)
        typist.terminal.type("sbusctl pub \t\t--ad\tx k\n")
        typist.terminal.wait_for(b"called sbusctl", before)
        assert b"evil" not in typist.terminal.shown[before:]


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_options_files_services_and_patterns(shell: str, bus: Daemon, tmp_path: Path) -> None:
    client = bus.client()
    for pattern in (b"rpc/greet", b"net/", b"a/*/up"):
        client.subscribe(pattern)
    client.barrier()
    (tmp_path / "file (1)").touch()
    with typing(shell, bus, tmp_path) as typist:
        assert typist.arguments("sbusctl conn\t") == ["connections"]
        assert typist.arguments("sbusctl --no-l\twhoami") == ["--no-legend", "whoami"]
        assert typist.arguments("sbusctl top --sort blocked-\t") == ["top", "--sort", "blocked-by"]
        assert typist.arguments("sbusctl top --sort=blocked-\t") == ["top", "--sort=blocked-by"]
        assert typist.arguments("sbusctl -a fi\t whoami") == ["-a", "file (1)", "whoami"]
        assert typist.arguments("sbusctl call gr\tx") == ["call", "greet", "x"]
        assert typist.arguments("sbusctl sub a/\t") == ["sub", "a/*/up"]
        # A slash at the end of a pattern continues.
        assert typist.arguments("sbusctl pub ne\teth0") == ["pub", "net/eth0"]


def test_a_quoted_reserved_key_is_completed_in_bash(bus: Daemon, tmp_path: Path) -> None:
    client = bus.client()
    client.subscribe(b"!/cred//0//letters")
    client.barrier()
    with typing("bash", bus, tmp_path) as typist:
        # History expansion would replace the exclamation mark.
        assert typist.arguments("sbusctl pub !/cr\tx") == ["pub", "!/cred//0//letters", "x"]
        assert typist.arguments("sbusctl pub \\!/cr\tx") == ["pub", "!/cred//0//letters", "x"]
        assert typist.arguments("sbusctl pub '!/'cr\tx") == ["pub", "!/cred//0//letters", "x"]


def _reply(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sbusctl.main", "__complete", "zsh", *words]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)


def test_it_is_silent_without_a_bus(tmp_path: Path) -> None:
    done = _reply("pub", "", SBUS_ADDRESS=str(tmp_path / "none"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "words\n", "")


def test_a_bus_that_does_not_respond_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(tmp_path / "socket"))
        silent.listen()
        done = _reply("pub", "", SBUS_ADDRESS=str(tmp_path / "socket"), SBUS_COMPLETION_TIMEOUT="0.05")
    assert (done.returncode, done.stdout, done.stderr) == (0, "words\n", "")


def test_a_user_gets_the_names_that_it_may_see(bus: Daemon, stage: Stage, first_user: User, second_user: User) -> None:
    shell = Shell(stage, bus)
    shell.env["SBUS_COMPLETION_TIMEOUT"] = "60"
    client = bus.client(first_user)
    for key in (b"a/b", b"!/cred//%d//x" % first_user.uid):
        client.subscribe(key)
    number = client.ask(controls.ADDRESS).decode()
    assert shell.run("__complete", "fish", "pub", "a").stdout == b"words\na/b\t\n"
    assert shell.run("__complete", "fish", "pub", "a", user=second_user).stdout == b"words\n"
    assert number in shell.run("__complete", "fish", "pub", "!/conn/", user=first_user).stdout.decode()
    seen = shell.run("__complete", "fish", "pub", "!/", user=second_user).stdout.decode()
    assert number not in seen
    assert "cred" not in seen
