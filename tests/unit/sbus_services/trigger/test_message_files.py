"""The messages that units read."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from sbus_services.trigger.message_files import KEPT_SECONDS, MAX_BYTES, MAX_UNITS, MessageFiles, NoRoomError, environment
from sbus_services.trigger.rule_state import Firing, Sender
from tests.unit.sbus_services.trigger.rules import rule


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def firing(unit: str, payload: bytes = b"p", key: bytes = b"a/b") -> Firing:
    """Return an action of *unit*."""
    return Firing(rule(), unit, key, payload, Sender(1000, 100, 5, 1000))


def test_only_the_owner_can_read_them(tmp_path: Path) -> None:
    files = MessageFiles(tmp_path / "messages")
    files.open()
    files.write(firing("x.service"), 1)
    folder = tmp_path / "messages"
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "x.service")] == [0o700, 0o700]
    assert sorted(os.listdir(folder / "x.service")) == ["environment", "payload"]
    assert (folder / "x.service/payload").read_bytes() == b"p"


def test_no_byte_of_a_key_ends_its_value() -> None:
    key = bytes(range(1, 256))
    lines = environment(firing("x.service", key=key), 3).decode("ascii").splitlines()
    values = dict(line.split("=", 1) for line in lines)
    assert list(values) == ["SBUS_RULE", "SBUS_KEY", "SBUS_MESSAGES", "SBUS_SENDER_UID", "SBUS_SENDER_GID", "SBUS_SENDER_PID"]
    assert all(len(shlex.split(value)) == 1 and value.isprintable() for value in values.values())
    assert shlex.split(values["SBUS_KEY"])[0].encode().decode("unicode_escape").encode("latin-1") == key
    assert values["SBUS_MESSAGES"] == "'3'"


def test_they_are_removed_a_while_after_the_job(tmp_path: Path) -> None:
    clock = Clock()
    files = MessageFiles(tmp_path, clock)
    files.open()
    for unit in ("done.service", "running.service"):
        files.write(firing(unit), 1)
    files.finished("done.service")
    clock.now = KEPT_SECONDS - 1
    files.sweep()
    assert sorted(os.listdir(tmp_path)) == ["done.service", "running.service"]
    clock.now = KEPT_SECONDS
    files.sweep()
    assert os.listdir(tmp_path) == ["running.service"]


def test_their_number_and_size_are_bounded(tmp_path: Path) -> None:
    files = MessageFiles(tmp_path)
    files.open()
    for number in range(MAX_UNITS):
        files.write(firing(f"{number}.service"), 1)
    with pytest.raises(NoRoomError, match="256 units have not yet read"):
        files.write(firing("more.service"), 1)
    files.write(firing("0.service", b"again"), 1)
    files.finished("7.service")
    files.write(firing("more.service"), 1)
    assert len(os.listdir(tmp_path)) == MAX_UNITS
    assert not (tmp_path / "7.service").exists()
    with pytest.raises(NoRoomError):
        files.write(firing("more.service", bytes(MAX_BYTES)), 1)


def test_files_of_an_earlier_trigger_remain_for_a_time_whatever_the_date_is(tmp_path: Path) -> None:
    (tmp_path / "x.service").mkdir()
    os.utime(tmp_path / "x.service", (0, 0))
    (tmp_path / "a file").touch()
    (tmp_path / "a link").symlink_to("/")
    clock = Clock()
    files = MessageFiles(tmp_path, clock)
    files.open()
    assert os.listdir(tmp_path) == ["x.service"]
    clock.now = KEPT_SECONDS
    files.sweep()
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_shell_reads_the_environment(tmp_path: Path) -> None:
    (tmp_path / "environment").write_bytes(environment(firing("x.service", key=b"a'; touch pwned; '\n$(touch pwned)`touch pwned`"), 1))
    shown = subprocess.run(["sh", "-c", '. ./environment; printf %s "$SBUS_KEY"'], cwd=tmp_path, check=True, capture_output=True).stdout
    assert shown == rb"a\x27; touch pwned; \x27\x0a$(touch pwned)`touch pwned`"
    assert os.listdir(tmp_path) == ["environment"]
