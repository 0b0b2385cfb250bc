"""The command line: the original's options, ours, and what is said to a mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbus import __version__
from sbus.protocol.addresses import InheritedDescriptor, RandomAbstract, UnixName
from sbusd.daemon.options import DEFAULT_PID_FILE, Options, UsageError, parse_options


def test_nothing_asked_for_is_the_default() -> None:
    assert parse_options([]) == Options()
    assert Options().socket_mode == 0o700
    assert Options().pid_file == DEFAULT_PID_FILE == Path("/run/sbus.pid")
    assert Options().default_address({}) == UnixName(b"/run/sbus.socket")
    assert Options().main_file == Path("/etc/sbus/sbusd.toml")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-a", "/tmp/s"], Options(address=UnixName(b"/tmp/s"))),
        (["-a", "/dev/unix/abstract"], Options(address=RandomAbstract())),
        (["-a/dev/fd/7"], Options(address=InheritedDescriptor(7))),
        (["--address", "/tmp/s"], Options(address=UnixName(b"/tmp/s"))),
        (["-f"], Options(foreground=True)),
        (["--foreground"], Options(foreground=True)),
        (["-p", "/dev/null"], Options(pid_file=None)),
        (["--pid-file", "/x/../y"], Options(pid_file=Path("/y"))),
        (["-u", "root", "-u", "1000"], Options(allowed_users=(0, 1000))),
        (["--allow-user", "0"], Options(allowed_users=(0,))),
        (["-c"], Options(exit_after_last=True)),
        (["--exit-after-last"], Options(exit_after_last=True)),
        (["-g"], Options(socket_mode=0o770)),
        (["--group-access"], Options(socket_mode=0o770)),
        (["-o"], Options(socket_mode=0o707)),
        (["--others-access"], Options(socket_mode=0o707)),
        (["-r"], Options(reuse_address=True)),
        (["--reuse-address"], Options(reuse_address=True)),
        (["-cgorf"], Options(exit_after_last=True, socket_mode=0o777, reuse_address=True, foreground=True)),
        (["-cgora", "/tmp/s"], Options(exit_after_last=True, socket_mode=0o777, reuse_address=True, address=UnixName(b"/tmp/s"))),
        (["-C", "/x.toml", "--check-config"], Options(config_file=Path("/x.toml"), check_config=True)),
        (["--config", "/x.toml"], Options(config_file=Path("/x.toml"))),
        (["--user"], Options(user_bus=True)),
        (["--stalls", "/x/../y"], Options(stalls_file=Path("/y"))),
    ],
)
def test_an_option_is_understood(arguments: list[str], expected: Options) -> None:
    assert parse_options(arguments) == expected


def test_paths_are_absolute_for_the_bus_changes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = parse_options(["-p", "pid", "-C", "x.toml"])
    assert options.pid_file == tmp_path / "pid"
    assert options.main_file == options.config_file == tmp_path / "x.toml"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-x"], "unrecognized arguments: -x"),
        (["word"], "unrecognized arguments: word"),
        (["-a"], "argument -a/--address: expected one argument"),
        (["-a", ""], '-a: "" is empty'),
        (["--stream-address", ""], '--stream-address: "" is empty'),
        (["-p", ""], "argument -p/--pid-file: must not be empty"),
        (["-C", ""], "argument -C/--config: must not be empty"),
        (["--stalls", ""], "argument --stalls: must not be empty"),
        (["-u", ""], '-u: invalid user name ""'),
        (["-a", "/" + "x" * 108], "bytes; the path of a socket has at most 107"),
        (["--addr", "/x"], "unrecognized arguments: --addr /x"),
        (["-u", "no-such-user"], '-u: unknown user "no-such-user"'),
        (["-x\n\x1b[2J"], r"\x0a\x1b[2J"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_options(arguments)
    assert says in str(refusal.value)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("folder", [None, "", "relative"])
def test_a_users_bus_needs_a_place(folder: str | None) -> None:
    with pytest.raises(UsageError, match=r"\$XDG_RUNTIME_DIR"):
        Options(user_bus=True).default_address({} if folder is None else {"XDG_RUNTIME_DIR": folder})


def test_a_users_bus_has_its_own_address_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "XDG_CONFIG_HOME", "/x")
    options = Options(user_bus=True)
    assert options.default_address({"XDG_RUNTIME_DIR": "/run/user/7"}) == UnixName(b"/run/user/7/sbus.socket")
    assert options.main_file == Path("/x/sbus/sbusd.toml")


def test_a_users_folder_that_is_too_long_is_reported() -> None:
    with pytest.raises(UsageError, match="the path of a socket has at most 107"):
        Options(user_bus=True).default_address({"XDG_RUNTIME_DIR": "/" + "x" * 200})


@pytest.mark.parametrize(("option", "says"), [("--version", f"sbusd {__version__}\n"), ("--help", "usage: sbusd")])
def test_information_is_printed(option: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_options([option])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(says)
