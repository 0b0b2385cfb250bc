"""Files with passwords and keys: private, small, one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbusd.config.files import ConfigError
from sbusd.link.network.credential_files import read_secret


def _file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    file = folder / "secret"
    file.write_bytes(content)
    file.chmod(mode)
    return file


def test_white_space_around_is_removed(tmp_path: Path) -> None:
    assert read_secret(_file(tmp_path, b"  a b\n\n")) == "a b"


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"", 0o600, "must have 1 to 1024 bytes"),
        (b" \n", 0o600, "must have 1 to 1024 bytes"),
        (b"x" * 1025, 0o600, "must have 1 to 1024 bytes"),
        (b"a\nb", 0o600, "one line of ASCII characters"),
        (b"a\r\nPUB", 0o600, "one line of ASCII characters"),
        ("ä".encode(), 0o600, "one line of ASCII characters"),
        (b"secret", 0o644, "accessible to other users: mode 0644"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: bytes, mode: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_secret(_file(tmp_path, content, mode))


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, says in (("fifo", "not a regular file"), ("missing", "No such file"), (".", "Is a directory")):
        with pytest.raises(ConfigError, match=says):
            read_secret(tmp_path / name)
