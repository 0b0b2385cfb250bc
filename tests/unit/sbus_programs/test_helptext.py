"""Help texts do not depend on the version of typer: here that of the developers, in tests/system/test_help.py the oldest that counts."""

from __future__ import annotations

import contextlib
import importlib
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sbus import __version__
from sbus_programs.helptext import PlainCommand, PlainGroup, show_usage_error
from sbusctl.application import application
from sbusctl.command_line import read_call

USAGES = [("pub", "KEY [PAYLOAD]"), ("sub", "PATTERN..."), ("serve", "COMMAND [ARG]..."), ("members", "KEY"), ("monitor", "[PATTERN]")]


@pytest.mark.parametrize(("command", "usage"), USAGES)
def test_a_usage_line_is_the_manuals(command: str, usage: str) -> None:
    shown = CliRunner().invoke(application(), [command, "--help"], prog_name="sbusctl").output
    assert shown.splitlines()[0] == f"Usage: sbusctl {command} [OPTIONS] {usage}"


def test_text_escaped_by_typer_is_shown_unescaped(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(cls=PlainGroup, rich_markup_mode=None)

    @app.command(cls=PlainCommand, help="One \\[required] of two.")
    def one(_key: Annotated[str, typer.Argument(metavar="KEY", help="A \\[x>=1] key.")]) -> None: ...

    @app.command(cls=PlainCommand, help="Another \\[one].")
    def two() -> None: ...

    monkeypatch.setenv("COLUMNS", "200")
    for arguments in ([], ["one"], ["two"]):
        shown = CliRunner().invoke(app, [*arguments, "--help"]).output
        assert "\\" not in shown
        assert "[" in shown


def test_ranges_are_in_words_and_global_options_apart() -> None:
    shown = CliRunner().invoke(application(), ["serve", "--help"], env={"COLUMNS": "200"}).output
    assert "[default: 8; 1 to 64]" in shown
    assert "[default: 30.0; 0.001 to 31536000]" in shown
    arguments, options = shown.partition("Options:\n")[0], shown.partition("Global Options:\n")
    assert "  COMMAND  Command to serve.\n" in arguments
    assert "--max-concurrent" in options[0]
    assert "--address" not in options[0]
    assert "--address" in options[2]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("'x' is not a valid integer.", "'x' is not a whole number"),
        ("'x' is not a valid float.", "'x' is not a number"),
        ("0 is not in the range x>=1.", "must be at least 1, not 0"),
        ("0.05 is not in the range 0.1<=x<=86400.", "must be at least 0.1, not 0.05"),
        ("129 is not in the range 1<=x<=128.", "must be at most 128, not 129"),
        ("nan is not in the range 0<=x<=128.", "'nan' is not a number"),
    ],
)
def test_older_versions_report_invalid_numbers_in_the_same_words(words: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_usage_error(typer.BadParameter(words, param_hint="--count"))
    assert capsys.readouterr().err == f"invalid value for --count: {shown}\n"


@pytest.mark.parametrize(
    ("arguments", "program", "words"),
    [
        (["--bogus"], "sbusctl", "no such option: --bogus"),
        (["bogus"], "sbusctl", "no such command 'bogus'"),
        (["sub"], "sbusctl sub", "missing argument PATTERN"),
        (["sub", "a", "-n"], "sbusctl sub", "option -n requires an argument"),
        (["sub", "a", "--raw", "-F", "%k"], "sbusctl sub", "--raw, --format and --json are mutually exclusive"),
    ],
)
def test_a_usage_error_names_the_program_and_the_help(arguments: list[str], program: str, words: str) -> None:
    result = CliRunner().invoke(application(), arguments, prog_name="sbusctl")
    first, usage, hint = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert first.startswith(f"{program.replace(' ', ': ')}: {words}")
    assert usage.startswith(f"Usage: {program} [OPTIONS]")
    assert hint == f"Try '{program} --help' for more information."


def test_an_unknown_option_may_be_an_argument() -> None:
    result = CliRunner().invoke(application(), ["pub", "key", "-x"], prog_name="sbusctl")
    assert result.stderr.splitlines()[:2] == ["sbusctl: pub: no such option: -x", "Write '--' before arguments that begin with '-'."]
    without = CliRunner().invoke(application(), ["whoami", "-x"], prog_name="sbusctl")
    assert "Write" not in without.stderr


@pytest.mark.parametrize("part", [
    "sbus_archive.pipeline", "sbus_archive.recorder", "sbus_services.blob", "sbus_services.feeds", "sbus_services.link",
    "sbus_services.metrics", "sbus_services.relay", "sbus_services.store", "sbus_services.trigger", "sbus_services.web",
])  # fmt: skip
def test_each_program_prints_its_version(part: str) -> None:
    program = importlib.import_module(f"{part}.main").app
    done = CliRunner().invoke(program, ["--version"], prog_name="sbus-name")
    assert (done.exit_code, done.output) == (0, f"sbus-name {__version__}\n")


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_a_full_disk_is_one_line(option: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(SystemExit) as ended:
            importlib.import_module("sbus_services.store.main").app([option], prog_name="sbus-name")
        monkeypatch.undo()
        # The buffer cannot be written.
        with contextlib.suppress(OSError):
            full.close()
    assert ended.value.code == 1
    assert capfd.readouterr().err == "sbus-name: cannot write to standard output: No space left on device\n"


def test_sbusctl_prints_its_version_before_a_command_only() -> None:
    for arguments in (["--version"], ["--version", "pub"], ["-j", "--version"]):
        done = CliRunner().invoke(application(), arguments, prog_name="sbusctl")
        assert (done.exit_code, done.output) == (0, f"sbusctl {__version__}\n")
        assert read_call(arguments) is None
    assert CliRunner().invoke(application(), ["pub", "--version"]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["sub", "--queue", "a", "b"], "sbusctl: sub: no such option: --queue (Possible options: --group)"),
        (["pub", "--count", "5", "a"], "sbusctl: pub: no such option: --count"),
        (["sub", "--grop", "a", "b"], "sbusctl: sub: no such option: --grop Did you mean --group?"),
        (["subscribe", "a"], "sbusctl: unknown command 'subscribe'; use 'sbusctl sub'"),
        (["request", "time"], "sbusctl: unknown command 'request'; use 'sbusctl call'"),
    ],
)
def test_names_of_other_programs_are_suggested(arguments: list[str], first: str) -> None:
    line = CliRunner().invoke(application(), arguments, prog_name="sbusctl").stderr.splitlines()[0]
    assert line.replace("?", "") in {first.replace("?", ""), first.replace(" Did you mean --group?", " (Possible options: --group)")}
