"""What must not harm the bus: a machine whose journal or /run is full, and a journald that hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.container import Container
from tests.system.conftest import FILL


@contextmanager
def changed(machine: Container, folder: str, name: str, text: str, apply: str) -> Iterator[None]:
    """Have the file *name* in *folder*, and undo that; the command *apply* follows either."""
    machine.run(f"mkdir --parents {folder} && cat >{folder}/{name} && {apply}", stdin=text)
    try:
        yield
    finally:
        machine.run(f"rm {folder}/{name}; {apply}")


def test_a_full_journal_does_not_harm_the_bus(machine: Container) -> None:
    journal = "/var/log/journal"
    machine.run(f"mount -t tmpfs -o size=512k,mode=0755 none {journal}; systemctl restart systemd-journald; {FILL.format(folder=journal)}")
    try:
        machine.run("sbusctl whoami")
        for _ in range(5):
            assert "EACCES" in machine.run("sbusctl sub -n 1 '!/cred//1///x'", user="alice", check=False).stderr
        machine.run("systemctl restart sbus.service && sbusctl whoami && sbusctl pub a b")
    finally:
        machine.run(f"umount --lazy {journal}; systemctl restart systemd-journald")
    machine.run("sbusctl sub -n 1 '!/cred//2///x'", user="alice", check=False)
    machine.wait_for("journalctl --unit=sbus.service SBUS_EVENT=secret-refused | grep rejected")


@pytest.mark.parametrize(
    ("shrink", "fill"),
    [("size=300k", FILL.format(folder="/run")), ("nr_inodes=300", "while touch /run/fill$((i=i+1)) 2>/dev/null; do :; done")],
    ids=["bytes", "files"],
)
def test_a_full_run_does_not_harm_the_bus(machine: Container, shrink: str, fill: str) -> None:
    """systemd cannot even start a command then, so all is done by one that runs before."""
    room = "rm --force /run/fill* /run/full; mount -o remount,size=50%,nr_inodes=800k /run"
    script = f"""
        set -e
        sbusctl whoami
        mount -o remount,{shrink} /run
        {fill}
        if (echo full >/run/full) 2>/dev/null; then exit 1; fi
        sbusctl whoami; sbusctl pub a b
        systemctl kill --signal=HUP --kill-whom=main sbus.service
        sbusctl whoami; sbusctl pub a b
        pid=$(systemctl show --property=MainPID --value sbus.service)
        {room}
        test $pid -gt 1
        test $pid = $(systemctl show --property=MainPID --value sbus.service)
    """
    try:
        machine.run(script)
    finally:
        machine.run(room)


def test_the_bus_starts_where_run_is_full(machine: Container) -> None:
    script = f"""
        mount -o remount,size=300k /run; {FILL.format(folder="/run")} || {{ echo not full; exit 1; }}
        systemctl restart sbus.service && sbusctl whoami
        status=$?
        rm /run/fill; mount -o remount,size=50% /run
        exit $status
    """
    done = machine.run(script, check=False)
    assert done.status == 0, done


def test_a_hanging_journald_does_not_block_the_bus(machine: Container) -> None:
    """More is recorded than there is room for: what is lost is counted, and said when journald reads again."""
    text = '[log]\nlevel = "debug"\nrate_per_cause_per_user = { burst = 100000, interval = "1s" }\n'
    reload = "sbusctl whoami; systemctl kill --signal=HUP --kill-whom=main sbus.service; sbusctl whoami"
    with changed(machine, "/etc/sbus/sbusd.toml.d", "log.toml", text, reload):
        try:
            machine.run("systemctl kill --signal=STOP --kill-whom=main systemd-journald.service")
            machine.run(f"python3 -c '{_MANY_VISITS}'")
            log = json.loads(machine.output("sbusctl stats --json=short"))["log"]
            assert log["dropped"] > 0
        finally:
            machine.run("systemctl kill --signal=CONT --kill-whom=main systemd-journald.service")
        machine.wait_for("journalctl --unit=sbus.service SBUS_EVENT=records-dropped | grep lost")


_MANY_VISITS = """
import socket
for _ in range(20_000):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bus:
        bus.connect("/run/sbus.socket")
        bus.send(b"CMSG !/bus/ping\\0x")
        assert bus.recv(100).endswith(b"x")
"""
"""Each is two records, and each is answered; journald's socket has room for a few thousand at most."""
