"""Where a link goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbusd.web.links import link_file, print_link


def test_a_link_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_link("http://127.0.0.1:1/?token=x")
    assert "    http://127.0.0.1:1/?token=x\n" in capsys.readouterr().out


def test_a_closed_standard_output_does_not_end_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken:
        monkeypatch.setattr("sys.stdout", broken)
        print_link("http://127.0.0.1:1/")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), broken.fileno())


def test_a_file_is_replaced_as_a_whole_and_private(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("an older and longer link")
    file.chmod(0o644)
    with file.open() as reader:
        link_file(file)("http://127.0.0.1:1/")
        assert reader.read() == "an older and longer link"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("http://127.0.0.1:1/\n", 0o600)
    assert [path.name for path in tmp_path.iterdir()] == ["url"]


def test_a_link_is_not_written_through_a_symbolic_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "url").symlink_to(victim)
    link_file(tmp_path / "url")("http://127.0.0.1:1/")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "url").is_symlink()


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        link_file(tmp_path / "none" / "url")("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        link_file(tmp_path / "folder")("x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        link_file(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_that_cannot_be_printed_is_reported(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        print_link("http://127.0.0.1:1/")
        monkeypatch.undo()
    line = capfd.readouterr().err
    assert line == "sbus-web: cannot write the link to standard output: [Errno 28] No space left on device; use --url-file\n"
