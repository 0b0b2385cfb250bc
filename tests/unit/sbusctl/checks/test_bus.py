"""The mode, owner and directory of the socket, and the responses of the bus."""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from sbus import __version__
from sbus.bus_unit import BusUnit
from sbus.errors import NoBus, no_bus
from sbusctl.checks import CheckResult, bus
from sbusctl.checks.bus import (
    BusResponse,
    SocketFacts,
    check_errors,
    check_listener,
    check_socket,
    judge_response,
    judge_socket,
    manager_holds,
    open_connections,
    status_faults,
    unreachable,
)
from sbusctl.checks.installation import judge_descriptors

_GOOD_SOCKET = SocketFacts(stat.S_IFSOCK | 0o666, 0, True, stat.S_IFDIR | 0o755, 0)
_OTHER_UID = os.geteuid() + 12345

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
        (replace(_GOOD_SOCKET, uid=_OTHER_UID), "owner", CheckResult.WARN),
        (replace(_GOOD_SOCKET, uid=os.geteuid()), "owner", CheckResult.OK),
        (replace(_GOOD_SOCKET, folder_mode=stat.S_IFDIR | 0o777), "directory", CheckResult.WARN),
        (replace(_GOOD_SOCKET, folder_mode=stat.S_IFDIR | 0o1777), "directory", CheckResult.OK),
        (replace(_GOOD_SOCKET, folder_uid=_OTHER_UID), "directory", CheckResult.WARN),
    ],
)
def test_judges(facts: SocketFacts, check: str, result: CheckResult) -> None:
    found = {finding.check: finding for finding in judge_socket(facts, None, is_for_all=True)}
    assert found[check].result is result
    assert (found[check].advice == "") is (result is CheckResult.OK)


def test_a_bus_for_one_user_needs_no_mode_for_others() -> None:
    assert judge_socket(replace(_GOOD_SOCKET, mode=stat.S_IFSOCK | 0o600), None, is_for_all=False)[0].result is CheckResult.OK


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


def test_only_at_the_address_of_a_unit_is_a_file_to_be_removed() -> None:
    """Any other address may be the wrong one, such as /dev/null."""
    (finding,) = check_socket("/dev/null", is_for_all=False)
    assert finding.advice == "use the address of a bus"
    assert "not a socket" in str(no_bus("/dev/null", ConnectionRefusedError(errno.ECONNREFUSED, "x")))
    facts = replace(_GOOD_SOCKET, mode=stat.S_IFREG | 0o644)
    (finding,) = judge_socket(facts, BusUnit("sbus.service", is_user=True), is_for_all=False)
    assert finding.advice == "remove it, then: systemctl --user restart sbus.socket"


def test_a_masked_socket_is_not_to_be_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"sbus.socket": {"LoadState": "masked"}}
    monkeypatch.setattr("sbusctl.checks.bus.shown_units", lambda scope, *names: shown)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/4711")
    (finding,) = check_socket("/run/user/4711/sbus.socket", is_for_all=False)
    assert finding.advice == "see sbus.socket: it is masked"


def test_a_real_socket(folder: Path) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        assert [finding.result for finding in check_socket(str(path), is_for_all=False)] == [CheckResult.OK] * 3
        assert check_socket(str(path), is_for_all=True)[0].result is CheckResult.WARN


def test_connections_that_a_restart_may_close_are_a_warning() -> None:
    for times, results in ((0, []), (3, [CheckResult.WARN])):
        found = judge_response(replace(_GOOD_RESPONSE, stats={**_GOOD_RESPONSE.stats, "control": {"connections_missing": times}}), None)
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
    found = judge_response(_GOOD_RESPONSE, None)
    assert [finding.check for finding in found] == ["connection", "protocol", "version"]
    assert all(finding.result is CheckResult.OK for finding in found)
    assert open_connections(_GOOD_RESPONSE) == 7


def test_a_server_that_does_not_respond_like_sbusd_fails() -> None:
    found = judge_response(BusResponse(None, {}, 1, "the bus does not answer !/bus/features"), None)
    assert [finding.result for finding in found] == [CheckResult.OK, CheckResult.FAIL]
    assert "does not answer !/bus/features" in found[1].reason


@pytest.mark.parametrize(("version", "word"), [("9.9.9", "9.9.9"), (None, "does not report")])
def test_another_version_is_a_warning(version: str | None, word: str) -> None:
    found = judge_response(replace(_GOOD_RESPONSE, stats={} if version is None else {"version": version}), None)
    assert [finding.result for finding in found] == [CheckResult.OK, CheckResult.OK, CheckResult.WARN]
    assert word in found[2].reason


def test_another_user_gets_no_counters() -> None:
    assert len(judge_response(replace(_GOOD_RESPONSE, stats={"version": __version__, "scope": "connection"}), None)) == 3
    assert open_connections(replace(_GOOD_RESPONSE, stats={})) is None


@pytest.mark.parametrize(
    ("unit", "records", "faults"),
    [
        (BusUnit("sbus.service", is_user=False), "journalctl --unit=sbus.service SBUS_EVENT=", "sbusd --check-config"),
        (
            BusUnit("sbus@lab.service", is_user=False), "journalctl --unit=sbus@lab.service SBUS_EVENT=",
            "sbusd --check-config -C /etc/sbus/lab.toml",
        ),
        (BusUnit("sbus.service", is_user=True), "journalctl --user --unit=sbus.service SBUS_EVENT=", "sbusd --check-config --user"),
        (None, "the log of the bus, or its standard error, event ", ""),
    ],
)  # fmt: skip
def test_what_explains_faults_is_about_the_bus_that_is_checked(unit: BusUnit | None, records: str, faults: str) -> None:
    answer = replace(_GOOD_RESPONSE, stats={**_GOOD_RESPONSE.stats, "control": {"configuration_faults": 2}})
    (finding,) = (each for each in judge_response(answer, unit) if each.check == "faults")
    assert finding.advice == f"list the faults: {records}configuration-fault"
    if unit is not None:
        (finding,) = status_faults("12 connections; configuration faults: x.toml", unit)
        assert finding.advice == f"list the faults: {faults}"
    advice = judge_descriptors(1_024, None, unit).advice
    assert (unit.name in advice) if unit else (".service" not in advice)


def test_a_bus_that_is_not_there_fails_with_the_reason() -> None:
    (finding,) = unreachable(ConnectionError("cannot connect to /x: refused"), "/x")
    assert (finding.result, finding.reason) == (CheckResult.FAIL, "cannot connect to /x: refused")


def test_a_user_that_has_used_up_a_quota_learns_which_processes_did() -> None:
    (finding,) = unreachable(NoBus("/x", "EDQUOT connections: 3 of 3 used by user 1001"), "/x")
    assert finding.result is CheckResult.FAIL
    assert "3 of 3 used by user 1001" in finding.reason
    assert "ss -xpH | grep 'u_seq.*users:'" in finding.advice
    assert "quota-refused" in finding.advice


SYSTEM = BusUnit("sbus.service", is_user=False)
ADDRESS = "/run/sbus.socket"
ACTIVE = {"sbus.socket": {"ActiveState": "active"}, "sbus.service": {"MainPID": "4321"}}


@pytest.fixture(autouse=True)
def _held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "manager_holds", lambda manager, address: None)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ECONNREFUSED])
def test_an_active_socket_unit_whose_path_leads_elsewhere_is_restarted(number: int) -> None:
    (found,) = check_listener(SYSTEM, ACTIVE, ADDRESS, None, NoBus(ADDRESS, "no", number))
    assert (found.result, found.advice) == (CheckResult.FAIL, "systemctl restart sbus.socket")
    assert check_listener(SYSTEM, {"sbus.socket": {"ActiveState": "inactive"}}, ADDRESS, None, NoBus(ADDRESS, "no", number)) == []
    assert check_listener(SYSTEM, ACTIVE, ADDRESS, None, NoBus(ADDRESS, "no", errno.EACCES)) == []


def test_the_listening_process_is_the_bus_or_its_service_manager() -> None:
    for peer in (1, 4321, 0, None):
        assert check_listener(SYSTEM, ACTIVE, ADDRESS, peer, None) == []
    (found,) = check_listener(SYSTEM, ACTIVE, ADDRESS, os.getpid(), None)
    assert found.result is CheckResult.WARN
    assert f"process {os.getpid()} " in found.reason
    assert found.advice.endswith("systemctl restart sbus.socket")


def test_a_socket_that_only_the_bus_holds_is_lost_at_its_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "manager_holds", lambda manager, address: False)
    (found,) = check_listener(SYSTEM, ACTIVE, ADDRESS, 4321, None)
    assert (found.result, found.advice) == (CheckResult.FAIL, "systemctl restart sbus.socket")


def test_the_manager_of_a_users_bus_is_the_parent_of_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "4321").mkdir()
    (tmp_path / "4321/status").write_text("Name:\tsbusd (x)\nPPid:\t99\n")
    monkeypatch.setattr(bus, "_PROC", tmp_path)
    asked: list[int] = []
    monkeypatch.setattr(bus, "manager_holds", lambda manager, address: asked.append(manager))
    user = BusUnit("sbus.service", is_user=True)
    assert check_listener(user, ACTIVE, ADDRESS, 4321, None) == []
    monkeypatch.setattr(bus, "manager_holds", lambda manager, address: manager != 99)
    (found,) = check_listener(user, ACTIVE, ADDRESS, 4321, None)
    assert (asked, found.result, found.advice) == ([99], CheckResult.FAIL, "systemctl --user restart sbus.socket")
    assert found.reason.startswith("the service manager does not hold the socket of sbus.socket any more")
    stopped = ACTIVE | {"sbus.service": {"MainPID": "0"}}
    assert check_listener(user, stopped, ADDRESS, 1, None) == []
    (tmp_path / "4321/status").unlink()
    assert check_listener(user, ACTIVE, ADDRESS, 4321, None) == []


def test_a_process_holds_what_it_has_bound(folder: Path) -> None:
    path = str(folder / "s")
    assert manager_holds(os.getpid(), path) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
        bound.bind(path)
        bound.listen()
        assert manager_holds(os.getpid(), path) is True
        assert manager_holds(os.getppid(), path) is False
    assert manager_holds(1 << 30, path) is None


def test_a_bus_without_standard_error_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "7/fd").mkdir(parents=True)
    link = tmp_path / "7/fd/2"
    link.symlink_to("/dev/null")
    (found,) = check_errors(7, SYSTEM, tmp_path)
    assert (found.result, found.advice) == (CheckResult.WARN, "systemctl restart sbus.service")
    link.unlink()
    link.symlink_to("socket:[1]")
    assert check_errors(7, SYSTEM, tmp_path) == check_errors(None, SYSTEM, tmp_path) == check_errors(8, SYSTEM, tmp_path) == []
