"""The checks of the service for large messages."""

from __future__ import annotations

import socket
from pathlib import Path

from sbusd.ctl.checks import CheckResult
from sbusd.ctl.checks.blob import check_blobs

LOADED = {"LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active"}


def test_nothing_is_checked_where_it_is_not_used(tmp_path: Path) -> None:
    assert check_blobs({}, str(tmp_path / "sbus.socket"), "user") == []
    assert check_blobs(LOADED | {"UnitFileState": "disabled"}, str(tmp_path / "sbus.socket"), "user") == []


def test_a_missing_socket_is_a_failure(tmp_path: Path) -> None:
    (finding,) = check_blobs(LOADED, str(tmp_path / "sbus.socket"), "user")
    assert finding.result is CheckResult.FAIL
    assert f"{tmp_path}/sbus-blob.socket" in finding.reason
    assert finding.advice == "systemctl --user restart sbus-blob.socket"


def test_a_socket_and_its_unit_belong_together(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "sbus-blob.socket"))
        results = [
            check_blobs(unit, str(tmp_path / "sbus.socket"), "user")[0].result for unit in (LOADED, {}, LOADED | {"ActiveState": "failed"})
        ]
    assert results == [CheckResult.OK, CheckResult.OK, CheckResult.WARN]
