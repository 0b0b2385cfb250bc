"""A token works once, guesses are limited, and the number of logins is bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbus_services.web.logins import (
    FAILURE_SECONDS,
    MAX_FAILURES,
    MAX_LOGINS,
    Login,
    Logins,
    TooManyFailuresError,
    is_equal,
    link_file,
    print_link,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def logged_in(logins: Logins) -> Login:
    login = logins.exchange(logins.token)
    assert login is not None
    return login


def test_a_token_works_once() -> None:
    logins = Logins()
    token = logins.token
    login = logged_in(logins)
    assert logins.token != token
    assert logins.exchange(token) is None
    assert logins.find(login.cookie) is login
    assert len({token, logins.token, login.cookie, login.key}) == 4


@pytest.mark.parametrize("wrong", ["", "x", "\udcff", "ü", "x" * 100_000])
def test_any_text_is_compared(wrong: str) -> None:
    logins = Logins()
    assert logins.exchange(wrong) is None
    assert logins.find(wrong) is None
    assert not is_equal(wrong, logins.token)
    assert is_equal(logins.token, logins.token)


def test_a_key_or_token_is_not_a_cookie() -> None:
    logins = Logins()
    login = logged_in(logins)
    assert logins.find(login.key) is None
    assert logins.find(logins.token) is None


def test_guesses_are_limited_for_a_time() -> None:
    clock = Clock()
    logins = Logins(clock)
    for _ in range(MAX_FAILURES):
        assert logins.exchange("wrong") is None
        clock.now += 1
    with pytest.raises(TooManyFailuresError):
        logins.exchange(logins.token)
    assert logins.wrong_tokens == MAX_FAILURES + 1
    clock.now = 1_000.0 + FAILURE_SECONDS - 0.1
    with pytest.raises(TooManyFailuresError):
        logins.exchange(logins.token)
    clock.now = 1_000.0 + FAILURE_SECONDS
    logged_in(logins)


def test_the_oldest_login_ends_first() -> None:
    logins = Logins()
    made = [logged_in(logins) for _ in range(MAX_LOGINS + 1)]
    assert logins.count == MAX_LOGINS
    assert logins.find(made[0].cookie) is None
    assert all(logins.find(each.cookie) is each for each in made[1:])


def test_secrets_are_not_in_texts() -> None:
    login = Login()
    assert login.key not in repr(login)
    assert login.cookie not in repr(login)


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
