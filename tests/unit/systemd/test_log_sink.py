"""Records arrive in the journal or on standard error, and the right one of them is chosen."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from sbusd.systemd import log_sink
from sbusd.systemd.log_record import journal_fields, standard_error_line
from sbusd.systemd.log_sink import JournalSink, StandardErrorSink, choose_sink
from tests.unit.systemd.test_log_record import RECORD, parse


class TestJournal:
    """The socket of the test takes the place of the journal's."""

    def test_a_record_arrives(self, folder: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
            journald.bind(str(folder / "s"))
            with closing(JournalSink("sbusd", str(folder / "s"))) as sink:
                sink.write(RECORD)
            assert parse(journald.recv(100_000)) == journal_fields(RECORD, "sbusd")

    def test_a_restarted_journal_gets_the_next_record(self, folder: Path) -> None:
        sink = JournalSink("sbusd", str(folder / "s"))
        for _ in range(2):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
                journald.bind(str(folder / "s"))
                sink.write(RECORD)
                assert journald.recv(100_000)
            (folder / "s").unlink()
        sink.close()

    def test_no_journal_is_an_error(self, folder: Path) -> None:
        with closing(JournalSink("sbusd", str(folder / "s"))) as sink, pytest.raises(FileNotFoundError):
            sink.write(RECORD)


class TestStandardError:
    """Standard error, wherever it leads."""

    def test_a_record_is_a_line(self, capfd: pytest.CaptureFixture[str]) -> None:
        StandardErrorSink("sbusd").write(RECORD)
        assert capfd.readouterr().err == standard_error_line(RECORD, "sbusd") + "\n"

    def test_a_line_in_pieces_is_whole(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, text: write(fd, text[:7]))
        StandardErrorSink("sbusd").write(RECORD)
        assert capfd.readouterr().err == standard_error_line(RECORD, "sbusd") + "\n"

    def test_the_null_device_is_an_error(self) -> None:
        kept = os.dup(2)
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, 2)
            with pytest.raises(OSError, match="standard error is the null device"):
                StandardErrorSink("sbusd").write(RECORD)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(null)


class TestChoice:
    """The journal or standard error."""

    @staticmethod
    def _own_stream() -> dict[str, str]:
        error = os.fstat(2)
        return {"JOURNAL_STREAM": f"{error.st_dev}:{error.st_ino}"}

    @pytest.fixture(autouse=True)
    def _journal(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "socket").touch()
        monkeypatch.setattr(log_sink, "JOURNAL_SOCKET", str(tmp_path / "socket"))

    def test_under_systemd_it_is_the_journal(self) -> None:
        with closing(choose_sink("sbusd", background=False, environment=self._own_stream())) as sink:
            assert isinstance(sink, JournalSink)

    def test_in_the_background_it_is_the_journal(self) -> None:
        with closing(choose_sink("sbusd", background=True, environment={})) as sink:
            assert isinstance(sink, JournalSink)

    @pytest.mark.parametrize("environment", [{}, {"JOURNAL_STREAM": ""}, {"JOURNAL_STREAM": "1:1"}, {"JOURNAL_STREAM": "nonsense"}])
    def test_for_a_person_it_is_standard_error(self, environment: dict[str, str]) -> None:
        assert isinstance(choose_sink("sbusd", background=False, environment=environment), StandardErrorSink)

    def test_without_a_journal_it_is_standard_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_sink, "JOURNAL_SOCKET", "/nowhere/socket")
        assert isinstance(choose_sink("sbusd", background=True, environment=self._own_stream()), StandardErrorSink)
