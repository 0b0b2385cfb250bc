"""The mode, owner and directory of the socket, and the responses of the bus."""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from sbusd import __version__
from sbusd.client.errors import no_bus
from sbusd.ctl.checks import CheckResult
from sbusd.ctl.checks.bus import BusResponse, SocketFacts, check_socket, judge_response, judge_socket, open_connections, unreachable

_GOOD_SOCKET = SocketFacts(stat.S_IFSOCK | 0o666, 0, True, stat.S_IFDIR | 0o755, 0)
_STRANGER = os.geteuid() + 12345

_GOOD_RESPONSE = BusResponse(["ping", "stats"], {"version": __version__, "counters": {"connections": 7}}, 1)


@pytest.mark.parametrize(
    ("facts", "check", "result"),
    [
        (_GOOD_SOCKET, "socket", CheckResult.OK),
        (_GOOD_SOCKET, "owner", CheckResult.OK),
        (_GOOD_SOCKET, "directory", CheckResult.OK),
        (replace(_GOOD_SOCKET, mode=stat.S_IFREG | 0o666), "socket", CheckResult.FAIL),
        (replace(_GOOD_SOCKET, is_writable=False), "socket", CheckResult.FAIL),
        (replace(_GOOD_SOCKET, mode=stat.S_IFSOCK | 0o660), "socket", CheckResult.WARN),
        (replace(_GOOD_SOCKET, uid=_STRANGER), "owner", CheckResult.WARN),
        (replace(_GOOD_SOCKET, uid=os.geteuid()), "owner", CheckResult.OK),
        (replace(_GOOD_SOCKET, folder_mode=stat.S_IFDIR | 0o777), "directory", CheckResult.WARN),
        (replace(_GOOD_SOCKET, folder_mode=stat.S_IFDIR | 0o1777), "directory", CheckResult.OK),
        (replace(_GOOD_SOCKET, folder_uid=_STRANGER), "directory", CheckResult.WARN),
    ],
)
def test_judges(facts: SocketFacts, check: str, result: CheckResult) -> None:
    found = {finding.check: finding for finding in judge_socket(facts, is_for_all=True)}
    assert found[check].result is result
    assert (found[check].advice == "") is (result is CheckResult.OK)


def test_a_bus_for_one_user_needs_no_mode_for_others() -> None:
    assert judge_socket(replace(_GOOD_SOCKET, mode=stat.S_IFSOCK | 0o600), is_for_all=False)[0].result is CheckResult.OK


@pytest.mark.parametrize("address", ["", "/" + "x" * 200, "/dev/unix/abstract"])
def test_an_address_that_names_no_bus_fails(address: str) -> None:
    (finding,) = check_socket(address, is_for_all=False)
    assert (finding.check, finding.result) == ("address", CheckResult.FAIL)
    assert finding.advice


@pytest.mark.parametrize("address", ["/dev/fd/3", "/dev/unix/abstract/0041"])
def test_an_address_that_is_not_a_file_is_skipped(address: str) -> None:
    (finding,) = check_socket(address, is_for_all=False)
    assert finding.result is CheckResult.SKIP


def test_real_files(tmp_path: Path) -> None:
    (finding,) = check_socket(str(tmp_path / "none"), is_for_all=True)
    assert finding.reason == "no such socket"
    (tmp_path / "file").touch()
    (finding,) = check_socket(str(tmp_path / "file"), is_for_all=True)
    assert finding.reason == "the file at this path is not a socket"
    (finding,) = check_socket(str(tmp_path / "file" / "deeper"), is_for_all=True)
    assert finding.reason == "cannot read its status: Not a directory"


def test_a_real_socket(folder: Path) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        assert [finding.result for finding in check_socket(str(path), is_for_all=False)] == [CheckResult.OK] * 3
        assert check_socket(str(path), is_for_all=True)[0].result is CheckResult.WARN


def test_connections_that_a_restart_may_close_are_a_warning() -> None:
    for times, results in ((0, []), (3, [CheckResult.WARN])):
        found = judge_response(replace(_GOOD_RESPONSE, stats={**_GOOD_RESPONSE.stats, "control": {"connections_missing": times}}))
        assert [each.result for each in found if each.check == "restart"] == results


def test_the_advice_names_the_requested_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/4711")
    (finding,) = check_socket("/run/user/4711/sbus.socket", is_for_all=False)
    assert "systemctl --user restart sbus.socket" in finding.advice
    (finding,) = check_socket("/no/such/sbus.socket", is_for_all=True)
    assert finding.advice == "start the bus, or use another address"
    assert "systemctl --user status sbus.service" in unreachable(ConnectionError("x"), "/run/user/4711/sbus.socket")[0].advice
    error = FileNotFoundError(errno.ENOENT, "none")
    assert "(systemctl --user restart sbus.socket)" in str(no_bus("/run/user/4711/sbus.socket", error))
    assert "(systemctl restart sbus.socket)" in str(no_bus("/run/sbus.socket", error))


def test_a_good_bus() -> None:
    found = judge_response(_GOOD_RESPONSE)
    assert [finding.check for finding in found] == ["connection", "protocol", "version"]
    assert all(finding.result is CheckResult.OK for finding in found)
    assert open_connections(_GOOD_RESPONSE) == 7


def test_a_server_that_does_not_respond_like_sbusd_fails() -> None:
    found = judge_response(BusResponse(None, {}, 1, "the bus does not answer !/bus/features"))
    assert [finding.result for finding in found] == [CheckResult.OK, CheckResult.FAIL]
    assert "does not answer !/bus/features" in found[1].reason


@pytest.mark.parametrize(("version", "word"), [("9.9.9", "9.9.9"), (None, "does not report")])
def test_another_version_is_a_warning(version: str | None, word: str) -> None:
    found = judge_response(replace(_GOOD_RESPONSE, stats={} if version is None else {"version": version}))
    assert [finding.result for finding in found] == [CheckResult.OK, CheckResult.OK, CheckResult.WARN]
    assert word in found[2].reason


def test_another_user_gets_no_counters() -> None:
    assert len(judge_response(replace(_GOOD_RESPONSE, stats={"version": __version__, "scope": "connection"}))) == 3
    assert open_connections(replace(_GOOD_RESPONSE, stats={})) is None


def test_a_bus_that_is_not_there_fails_with_the_reason() -> None:
    (finding,) = unreachable(ConnectionError("cannot connect to /x: refused"), "/x")
    assert (finding.result, finding.reason) == (CheckResult.FAIL, "cannot connect to /x: refused")
