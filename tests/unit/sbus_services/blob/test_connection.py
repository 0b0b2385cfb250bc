"""The listening socket of sbus-blob, and the error without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_services.blob.connection import ListenError, listening_socket


def _refusal(path: str | None, default: str) -> str:
    """Return the error of a service that cannot listen."""
    with pytest.raises(ListenError) as refused:
        listening_socket(path, default)
    return str(refused.value)


@pytest.mark.parametrize(("runtime", "manager"), [("", "systemctl"), ("user", "systemctl --user")])
def test_a_service_whose_socket_systemd_has_lost_says_so(
    runtime: str, manager: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another path would help no client, because clients use the default one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "user") if runtime else "")
    default = str(tmp_path / "user/missing/sbus-blob.socket")
    failed = f"cannot listen on {default}: No such file or directory; choose another path with --listen"
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert _refusal(None, default) == failed
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    assert _refusal(None, default) == f"systemd passed no socket: run: {manager} restart sbus-blob.socket ({failed})"
    assert _refusal(default, "/unused") == failed
