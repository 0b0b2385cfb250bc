"""What the store acknowledges is on a disk that loses everything that was not synchronized: a power cut at each acknowledgement."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from pathlib import Path

from tests.integration.store.conftest import STREAMS
from tests.support.daemons import Daemon
from tests.support.skips import require_program
from tests.support.store_programs import StoreCaller, StoreProgram
from tests.support.system_call_trace import COMMAND, Disk, SystemCall, traced_calls

_DATA = re.compile(rb'"dat":"([A-Za-z0-9+/=]+)"')

PUTS = 30


def acknowledged(call: SystemCall) -> list[int]:
    """Return the numbers of the messages that a packet of the store acknowledges."""
    found: list[int] = []
    for text in _DATA.findall(call.data):
        data = base64.b64decode(text)
        if data.startswith(b'{"seqs":'):
            found += json.loads(data)["seqs"]
    return found


def stored(folder: Path) -> tuple[set[int], int]:
    """Return the numbers of the messages in the log after a power cut, and how many jobs there are."""
    connection = sqlite3.connect(folder / "store.sqlite")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = connection.execute("SELECT message.id & 0xFFFFFFFFFFFF FROM message JOIN stream ON stream.id = stream WHERE name = 'log'")
        numbers = {number for (number,) in rows}
        ((jobs,),) = connection.execute("SELECT COUNT(*) FROM job").fetchall()
        return numbers, jobs
    finally:
        connection.close()


def test_each_acknowledgement_follows_the_sync_of_its_message(bus: Daemon, tmp_path: Path, needs_root: None) -> None:
    require_program("strace", "strace")
    trace = tmp_path / "trace"
    trace.mkdir()
    command = (*COMMAND, "-o", str(trace / "calls"))
    with StoreProgram(tmp_path, bus.path, STREAMS, command) as store:
        with StoreCaller(bus.path) as caller:
            for number in range(PUTS):
                caller.put("log/a", *[b"%d" % number * 50] * (1 + number % 3))
            caller.put("mail/a", b"job")
            (lease,) = caller.call("take", queue="mail", wait=30).leases
            assert caller.call("ack", queue="mail", leases=[lease]).head == {}
        store.kill()
    disk, checked, jobs = Disk(), 0, -1
    for call in traced_calls(trace, "calls"):
        if call.name != "sendto":
            disk.apply(call)
        elif seqs := acknowledged(call):
            folder = tmp_path / f"cut{checked}"
            disk.save(folder)
            numbers, jobs = stored(folder)
            checked += 1
            assert numbers.issuperset(seqs), f"acknowledged before it was on the disk: {set(seqs) - numbers}"
    assert checked == PUTS + 1
    assert jobs == 1
    disk.save(tmp_path / "end")
    assert stored(tmp_path / "end")[1] == 0
