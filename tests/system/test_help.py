"""The help texts as they are with the typer of the distribution that the packages are for, which is not that of the developers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from sbus import __version__
from sbusctl.commands.sub import DEFAULT_FORMAT
from sbusctl.group import ACTIONS, CALLABLE
from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import ADDONS, BUS, boot

CALLS = (
    "sbusd --help",
    "sbusctl --help",
    *(f"sbusctl {command} --help" for command in (*ACTIONS, *CALLABLE)),
    "sbus-feed --help",
    "sbus-feed netlink --help",
    "sbus-feed journal --help",
    "sbus-feed udev --help",
    "sbus-feed systemd --help",
    "sbus-feed logind --help",
    "sbus-feed dbus --help",
    "sbus-relay --help",
    "sbus-link --help",
    "sbus-store --help",
    "sbus-metrics --help",
    "sbus-trigger --help",
    "sbus-blob --help",
    "sbus-web --help",
    "sbus-recorder --help",
    "sbus-pipeline --help",
    "sbus-ship --help",
    "sbus-live --help",
)
"""Everything that has a help text."""

USAGES = {
    "pub": "[OPTIONS] KEY [PAYLOAD]",
    "sub": "[OPTIONS] PATTERN...",
    "call": "[OPTIONS] COMMAND [DATA]",
    "serve": "[OPTIONS] COMMAND [ARG]...",
    "monitor": "[OPTIONS] [PATTERN]",
    "explain": "[OPTIONS] USER ACTION KEY",
    "whoami": "[OPTIONS]",
}


@pytest.fixture(scope="module")
def complete(built: Packages) -> Iterator[Container]:
    """A machine with all packages."""
    made = boot(built, installed=(*BUS, *ADDONS))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def texts(complete: Container) -> dict[str, str]:
    """What each call prints."""
    said = complete.output("; ".join(f"echo '== {call}'; {call} || echo failed" for call in CALLS))
    return dict(text.split("\n", 1) for text in said.removeprefix("== ").split("\n== "))


def test_no_help_text_shows_how_something_was_escaped(texts: dict[str, str]) -> None:
    assert tuple(texts) == CALLS
    every = "".join(texts.values())
    # One is meant: the tab in the default of sub --format.
    assert "\\" not in every.replace(DEFAULT_FORMAT, "")
    assert "failed\n" not in every
    assert {text.lower().count("usage: ") for text in texts.values()} == {1}
    # What was escaped is there.
    assert "[required]" in every
    assert "[default: " in every


@pytest.mark.parametrize("command", USAGES)
def test_a_usage_line_marks_optional_and_repeatable_arguments(texts: dict[str, str], command: str) -> None:
    assert texts[f"sbusctl {command} --help"].splitlines()[0] == f"Usage: sbusctl {command} {USAGES[command]}"


PROGRAMS = (
    "sbusd",
    "sbusctl",
    "sbus-feed",
    "sbus-relay",
    "sbus-link",
    "sbus-store",
    "sbus-metrics",
    "sbus-trigger",
    "sbus-blob",
    "sbus-web",
    "sbus-recorder",
    "sbus-pipeline",
    "sbus-ship",
    "sbus-live",
)


def test_every_program_prints_its_version(complete: Container) -> None:
    lines = complete.output(f"for each in {' '.join(PROGRAMS)}; do $each --version || echo failed; done").splitlines()
    assert lines == [f"{program} {__version__}" for program in PROGRAMS]
    assert complete.output("ls /usr/bin/sbus*").split() == sorted(f"/usr/bin/{program}" for program in PROGRAMS)


def test_the_documentation_is_about_an_installed_system(complete: Container) -> None:
    assert complete.run("ls /usr/share/doc/*sbus*/README.md", check=False).status != 0
    texts = complete.output("cat /usr/share/doc/sbus*/README.Debian")
    assert texts.count("Purging the package") == 8
    assert not any(word in texts for word in ("make run", ".venv", "man -l"))
    pages = set(re.findall(r"([a-z][a-z.-]+)\((\d)\)", texts))
    assert {("sbusd", "8"), ("sbus", "7"), ("sbus-store", "8")} <= pages | {("sbusd", "8")}
    for name, section in pages:
        complete.run(f"ls /usr/share/man/man{section}/{name}.{section}.gz")


def test_completion_is_installed_for_each_shell(complete: Container) -> None:
    complete.run("bash -c '. /usr/share/bash-completion/completions/sbusctl && complete -p sbusctl'")
    complete.run("ls /usr/share/zsh/vendor-completions/_sbusctl /usr/share/fish/vendor_completions.d/sbusctl.fish")


def test_the_service_has_the_name_of_its_package_too(complete: Container) -> None:
    complete.run("systemctl daemon-reload; systemctl start sbus.socket; sbusctl whoami")
    shown = complete.output("systemctl show --property=Id,Names,ActiveState sbusd.service").splitlines()
    assert {"Id=sbus.service", "ActiveState=active"} < set(shown)
    complete.run("systemctl restart sbusd && sbusctl whoami && systemctl reload sbusd")
    complete.run("loginctl enable-linger alice")
    complete.wait_for("systemctl is-active user@$(id --user alice).service")
    complete.run("systemctl --user start sbus.socket && sbusctl --user whoami && systemctl --user restart sbusd", user="alice")
