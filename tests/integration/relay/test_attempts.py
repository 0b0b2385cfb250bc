"""Delivery attempts on a real bus, from which the recorder makes rows; and a port that is in use."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from sbus_archive.record.calls import CallRecognizer
from sbus_archive.record.schema import RowKind
from sbus_archive.recorder.rows import RELAY_ATTEMPT_KEY, PayloadPolicy, RowBuilder
from sbus_services.relay.sender import ATTEMPT_KEY
from tests.support.daemons import StartDaemon
from tests.support.relays import ENV, Host, free_address, peer_table, require_redis, shared_key
from tests.support.tapped_bus import message_packet


def test_attempts_are_rows_of_the_record(daemon: StartDaemon, folder: Path) -> None:
    require_redis()
    assert ATTEMPT_KEY.encode() == RELAY_ATTEMPT_KEY
    bus = daemon()
    client = bus.client()
    client.subscribe(b"relay/attempt")
    client.barrier()
    host = Host(folder, 1001)
    try:
        unused = free_address()
        host.relay.write(f'listen = "{free_address()}"\nbus = "{bus.path}"\n', peer_table(1002, unused, shared_key(folder)))
        host.relay.start()
        error = host.receive(host.send("x", 1002, try_=1))["err"]
        # Two, and one more for each network change that the kernel reported meanwhile.
        tries = 2 + host.counters().get("tries-hastened", 0)
        assert error.startswith(f"destination not reached after {tries} attempts")
        packets = [client.receive() for _ in range(tries)]
        host.relay.stop()
    finally:
        host.close()
    maker = RowBuilder(PayloadPolicy(), CallRecognizer("alpha", "boot"), unit_at=lambda *_: None)
    rows = [maker.row(message_packet(*packet.removeprefix(b"MSG ").split(b"\0", 1))) for packet in packets]
    reported = [(row.kind, row.twin, row.call_cmd, row.attempt, row.code) for row in rows if row]
    assert reported == [(RowKind.RELAY, 1002, "x", number, "unreachable") for number in range(1, tries + 1)]
    assert all(row and unused in (row.reason or "") and (row.duration or 0) > 0 for row in rows)


def test_without_a_bus_the_relay_works_and_counts(folder: Path) -> None:
    require_redis()
    host = Host(folder, 1001)
    try:
        host.relay.write(f'listen = "{free_address()}"\nbus = "{folder}/none"\n', "")
        host.relay.start()
        assert host.receive(host.send("x", 1002))["err"] == "destination not found"
        host.wait_counted("attempts-unpublished")
    finally:
        host.close()


def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = tmp_path / "relay.toml"
        file.write_text(f'twin = 1\nbus = ""\nlisten = "127.0.0.1:{taken.getsockname()[1]}"\n')
        command = [sys.executable, "-m", "sbus_services.relay.main", "-C", str(file)]
        done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("sbus-relay: cannot listen on 127.0.0.1:")
    assert "ddress already in use" in done.stderr
    assert "Traceback" not in done.stderr
