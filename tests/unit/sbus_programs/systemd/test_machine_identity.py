"""The identity of a machine: that of systemd, and empty without a machine id."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

from sbus_programs.systemd.machine_identity import machine_identity
from tests.support import skips

APPLICATION = uuid.UUID("a26a5a0c6be24d5c97a55f5e8f7ed6a5")


def test_it_depends_on_machine_and_application_and_hides_the_machine_id(tmp_path: Path) -> None:
    path = tmp_path / "machine-id"
    found = []
    for digit in "12":
        path.write_text(digit * 32 + "\n")
        found += [machine_identity(APPLICATION, path), machine_identity(uuid.UUID(int=1), path)]
        assert digit * 32 not in found
    assert len(set(found)) == 4
    assert machine_identity(APPLICATION, path) == found[2]
    assert [uuid.UUID(each).version for each in found] == [4] * 4


@pytest.mark.parametrize("content", ["", "uninitialized\n", "1" * 31, "é" * 32])
def test_without_a_valid_id_it_is_empty(tmp_path: Path, content: str) -> None:
    assert machine_identity(APPLICATION, tmp_path / "missing") == ""
    (tmp_path / "machine-id").write_text(content)
    assert machine_identity(APPLICATION, tmp_path / "machine-id") == ""


@pytest.mark.slow
def test_it_is_that_of_systemd() -> None:
    skips.require_program("systemd-id128", "systemd")
    command = ["systemd-id128", "machine-id", "--app-specific", APPLICATION.hex]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    # Without a machine id, systemd prints an error only.
    assert done.stdout.strip() == machine_identity(APPLICATION), done.stderr
