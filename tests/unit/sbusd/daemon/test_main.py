"""What sbusd reports about itself when it cannot start."""

from __future__ import annotations

import socket
from pathlib import Path

from sbus.bus_unit import start_error
from sbus_programs.config import ConfigError
from sbusd.daemon.main import report_failure


def test_clients_show_file_and_key_of_a_configuration_error(systemd: socket.socket) -> None:
    folder = f"/srv/{'x' * 250}/{'y' * 250}/{'z' * 250}"
    report_failure(ConfigError(Path(folder, "sbusd.toml"), "limits.queue_bytes", "must be at least 4096 bytes"))
    status = systemd.recv(8_192).decode().removeprefix("STATUS=")
    assert start_error(status).endswith("z/sbusd.toml: limits.queue_bytes: must be at least 4096 bytes")
    assert "…" in start_error(status)
