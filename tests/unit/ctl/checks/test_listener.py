"""Whether the socket at the address of a bus is that of its unit, and where standard error leads."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from sbusd.client import NoBus
from sbusd.client.bus_unit import BusUnit
from sbusd.ctl.checks import CheckResult, listener
from sbusd.ctl.checks.listener import check_errors, check_listener, manager_holds

SYSTEM = BusUnit("sbus.service", is_user=False)
ADDRESS = "/run/sbus.socket"
ACTIVE = {"sbus.socket": {"ActiveState": "active"}, "sbus.service": {"MainPID": "4321"}}


@pytest.fixture(autouse=True)
def _held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "manager_holds", lambda manager, address: None)


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
    monkeypatch.setattr(listener, "manager_holds", lambda manager, address: False)
    (found,) = check_listener(SYSTEM, ACTIVE, ADDRESS, 4321, None)
    assert (found.result, found.advice) == (CheckResult.FAIL, "systemctl restart sbus.socket")


def test_the_manager_of_a_users_bus_is_the_parent_of_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "4321").mkdir()
    (tmp_path / "4321/status").write_text("Name:\tsbusd (x)\nPPid:\t99\n")
    monkeypatch.setattr(listener, "_PROC", tmp_path)
    asked: list[int] = []
    monkeypatch.setattr(listener, "manager_holds", lambda manager, address: asked.append(manager))
    user = BusUnit("sbus.service", is_user=True)
    assert check_listener(user, ACTIVE, ADDRESS, 4321, None) == []
    monkeypatch.setattr(listener, "manager_holds", lambda manager, address: manager != 99)
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
