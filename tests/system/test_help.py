"""The help texts as they are with the typer of the distribution that the packages are for, which is not that of the developers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sbusd.ctl.commands.sub import DEFAULT_FORMAT
from sbusd.ctl.group import COMMANDS
from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import boot

CALLS = (
    "sbusd --help",
    "sbusctl --help",
    *(f"sbusctl {command} --help" for command in COMMANDS),
    "sbus-feed --help",
    "sbus-feed netlink --help",
    "sbus-feed journal --help",
    "sbus-relay --help",
    "sbus-link --help",
    "sbus-recorder --help",
    "sbus-pipeline --help",
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
    made = boot(built)
    try:
        every = (built.python, built.bus, built.relay, built.link, built.recorder)
        made.run(f"dpkg --install {' '.join(f'/opt/packages/{each.name}' for each in every)}")
        yield made
    finally:
        made.stop()


def test_no_help_text_shows_how_something_was_escaped(complete: Container) -> None:
    script = "; ".join(f"echo '== {call}'; {call} || echo failed" for call in CALLS)
    texts = complete.output(script)
    # One is meant: the tab in the default of sub --format.
    assert "\\" not in texts.replace(DEFAULT_FORMAT, "")
    assert "failed\n" not in texts
    assert texts.count("== ") == texts.lower().count("usage: ") == len(CALLS)
    # What was escaped is there.
    assert "[required]" in texts
    assert "[default: " in texts


@pytest.mark.parametrize("command", USAGES)
def test_a_usage_line_marks_optional_and_repeatable_arguments(complete: Container, command: str) -> None:
    assert complete.output(f"sbusctl {command} --help").splitlines()[0] == f"Usage: sbusctl {command} {USAGES[command]}"
