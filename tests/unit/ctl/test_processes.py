"""Names of users and processes."""

from __future__ import annotations

import os
from pathlib import Path

from sbusd.ctl.processes import command_name, user_name


def test_user_names() -> None:
    assert user_name(0) == "root"
    assert user_name(None) == "-"
    assert user_name(3_999_999_998) == "3999999998"
    assert user_name(1 << 80) == str(1 << 80)
    assert user_name(-5) == "-5"


def test_command_names() -> None:
    assert command_name(os.getpid()) == Path("/proc/self/comm").read_text().strip()
    assert command_name(None) == "-"
    assert command_name(0) == "-"
    assert command_name(-1) == "-"
    assert command_name(1 << 40) == "-"
