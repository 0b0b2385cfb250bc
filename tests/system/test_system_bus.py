"""The system's bus on a booted machine, as people and their programs find it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.catalog import entries
from tests.support.container import Container

MAX_EXPOSURE = 0.6
"""What systemd-analyze security may say of the bus: from 0.0, nothing to gain, to 10.0."""


@contextmanager
def listening(machine: Container, pattern: str, user: str, *, options: str = "") -> Iterator[list[str]]:
    """Have *user* listen for one message, whose line is in the list after the block; the subscription is there when it begins."""
    received: list[str] = []
    process = machine.start(f"sbusctl sub {options} -n 1 --timeout 60 '{pattern}'", user=user)
    machine.wait_for(f"test $(sbusctl stats {options} --json=short | grep -o '\"subscriptions\":[0-9]*' | cut -d: -f2) -gt 0")
    yield received
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    received += output.splitlines()


def test_the_first_connection_starts_the_service(fresh: Container) -> None:
    show = "systemctl show --property=ActiveState,UnitFileState sbus.socket sbus.service"
    assert fresh.output(show).split() == ["ActiveState=active", "UnitFileState=enabled", "ActiveState=inactive", "UnitFileState=static"]
    fresh.run("systemctl disable --now sbus.socket && test ! -e /run/sbus.socket && systemctl enable --now sbus.socket")
    assert fresh.output("sbusctl whoami", user="alice").startswith("!/cred/")
    pid = fresh.output("systemctl show --property=MainPID --value sbus.service")
    assert fresh.output(f"stat --format=%U /proc/{pid}; cat /proc/{pid}/status | grep CapEff").split() == ["sbus", "CapEff:", "0" * 16]


def test_two_users_have_their_peer_credentials(machine: Container) -> None:
    for user in ("alice", "bob"):
        uid, gid = machine.output("id -u; id -g", user=user).split()
        assert re.fullmatch(rf"!/cred/{gid}/{uid}/\d+", machine.output("sbusctl whoami", user=user))


def test_one_user_receives_messages_of_another(machine: Container) -> None:
    with listening(machine, "talk/", "bob") as received:
        machine.run("sbusctl pub talk/here hello", user="alice")
    assert received == ["talk/here\thello"]


def test_a_secret_reaches_its_user_alone(machine: Container) -> None:
    uid = machine.output("id -u bob")
    with listening(machine, f"!/cred//{uid}//letter", "bob") as received:
        refused = machine.run(f"sbusctl sub -n 1 '!/cred//{uid}//letter'", user="alice", check=False)
        assert refused.status != 0
        assert "EACCES" in refused.stderr
        machine.run(f"sbusctl pub '!/cred//{uid}//letter' dear", user="alice")
    assert received == [f"!/cred//{uid}//letter\tdear"]
    words = "The bus rejected a subscription to a private key of another user"
    machine.wait_for(f"journalctl --catalog --unit=sbus.service | grep --quiet '{words}'")


def test_the_groups_of_a_user_are_known_to_the_hardened_service(machine: Container) -> None:
    machine.run("groupadd choir; usermod --append --groups choir alice")
    gid = machine.output("getent group choir | cut -d: -f3")
    with listening(machine, f"!/cred/{gid}///x", "alice") as received:
        machine.run(f"sbusctl pub '!/cred/{gid}///x' sing", user="bob")
    assert received == [f"!/cred/{gid}///x\tsing"]
    assert machine.run(f"sbusctl sub -n 1 '!/cred/{gid}///x'", user="bob", check=False).status != 0


def test_a_process_is_watched_by_the_hardened_service(machine: Container) -> None:
    """SO_PEERPIDFD and its readiness work there, so the bus has nothing to warn of."""
    said = machine.output("python3 -c '" + _SECRET_OF_PROCESS.replace("'", '"') + "'", user="alice")
    assert said == "received"
    assert "kernel does not report the end of client processes" not in machine.journal("--unit=sbus.service")


_SECRET_OF_PROCESS = """
import os, socket
bus = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
bus.connect('/run/sbus.socket')
key = f'!/cred///{os.getpid()}/x'
bus.send(f'SUB {key}'.encode())
bus.send(f'MSG {key}'.encode() + bytes(1))
print('received' if bus.recv(1000).startswith(b'MSG !/cred/') else 'not')
"""


def test_root_owns_the_bus_and_alice_does_not(machine: Container) -> None:
    assert "accept_failures" in machine.output("sbusctl stats")
    assert "accept_failures" not in machine.output("sbusctl stats", user="alice")


def test_an_administrator_is_one_by_configuration(machine: Container) -> None:
    machine.run("""mkdir --parents /etc/sbus/sbusd.toml.d && echo 'admins = ["alice"]' >/etc/sbus/sbusd.toml.d/admins.toml""")
    try:
        machine.run("systemctl kill --signal=HUP --kill-whom=main sbus.service")
        machine.wait_for("sbusctl stats | grep accept_failures", user="alice")
        assert "accept_failures" not in machine.output("sbusctl stats", user="bob")
    finally:
        machine.run("rm /etc/sbus/sbusd.toml.d/admins.toml; systemctl kill --signal=HUP --kill-whom=main sbus.service")


def test_an_invalid_configuration_is_reported_and_changes_nothing(machine: Container) -> None:
    machine.run("sbusctl whoami; cp /etc/sbus/sbusd.toml /root/sbusd.toml && echo 'admin = 1' >/etc/sbus/sbusd.toml")
    try:
        machine.run("systemctl kill --signal=HUP --kill-whom=main sbus.service")
        machine.wait_for("journalctl --catalog --unit=sbus.service | grep 'The bus could not reload its configuration'")
        machine.run("sbusctl whoami")
    finally:
        machine.run("mv /root/sbusd.toml /etc/sbus/sbusd.toml; systemctl kill --signal=HUP --kill-whom=main sbus.service")


def test_the_status_reads_well(machine: Container) -> None:
    machine.run("sbusctl whoami")
    shown = machine.wait_for(r"systemctl status --no-pager sbus | grep --extended-regexp 'Status: \"[0-9]+ clients?, [0-9]+ messages?/s\"'")
    assert "client" in shown.stdout
    whole = machine.output("systemctl status --no-pager sbus")
    assert "TriggeredBy: ● sbus.socket" in whole
    assert "man:sbusd(8)" in whole


def test_another_user_does_not_speak_for_the_bus(machine: Container) -> None:
    """Everybody can write to systemd's socket; of the bus only its main process is believed."""
    machine.run("sbusctl whoami")
    before = machine.output("systemctl show --property=MainPID,ActiveState,NFileDescriptorStore sbus.service")
    machine.run(f"python3 -c '{_FORGERY}'", user="alice")
    machine.run(f"python3 -c '{_FORGERY}'")
    assert "forged" not in machine.output("systemctl status --no-pager sbus.service")
    assert machine.output("systemctl show --property=MainPID,ActiveState,NFileDescriptorStore sbus.service") == before
    machine.run("kill -HUP $(systemctl show --property=MainPID --value sbus.service)", user="alice", check=False)
    assert machine.output("systemctl show --property=MainPID,ActiveState,NFileDescriptorStore sbus.service") == before


_FORGERY = """
import socket
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as anybody:
    for state in (b"STATUS=forged", b"WATCHDOG=trigger", b"STOPPING=1", b"MAINPID=1", b"FDSTOREREMOVE=1\\nFDNAME=stored"):
        anybody.sendto(state, "/run/systemd/notify")
"""


def test_the_journal_explains_each_record(machine: Container) -> None:
    machine.run("journalctl --update-catalog")
    listed = dict(line.split(" sbusd: ", 1) for line in machine.output("journalctl --list-catalog").splitlines() if " sbusd: " in line)
    assert listed == {entry.id: entry.headers["Subject"] for entry in entries()}
    machine.run("sbusctl whoami")
    shown = machine.journal("--catalog --unit=sbus.service")
    assert "The bus serves clients at /run/sbus.socket." in shown
    assert "@SBUS" not in shown


@pytest.mark.parametrize("unit", ["sbus.service", "sbus@.service"])
def test_a_bus_is_exposed_to_little(machine: Container, unit: str) -> None:
    threshold = round(MAX_EXPOSURE * 10)
    analysed = machine.run(
        f"systemd-analyze security --offline=true --no-pager --threshold={threshold} /usr/lib/systemd/system/{unit}", check=False
    )
    assert analysed.status == 0, analysed.stdout.splitlines()[-1]
    strict = f"systemd-analyze security --offline=true --no-pager --threshold=1 /usr/lib/systemd/system/{unit}"
    assert machine.run(strict, check=False).status != 0  # so the threshold is one


def test_systemd_finds_nothing_wrong_with_the_installed_units(machine: Container) -> None:
    system = "sbus.service sbus.socket sbus@lab.service sbus@lab.socket sbus-feed@netlink.service"
    machine.run(f"systemd-analyze verify --man=no --recursive-errors=no {system}")
    machine.run("systemd-analyze --user verify --man=no --recursive-errors=no sbus.service sbus.socket sbus@lab.socket", user="alice")
    broken = "cp /usr/lib/systemd/system/sbus.service /tmp/broken.service; echo 'Wrong=1' >>/tmp/broken.service; "
    assert machine.run(broken + "systemd-analyze verify --man=no --recursive-errors=no /tmp/broken.service", check=False).status != 0


def test_a_second_bus_runs_independently(machine: Container) -> None:
    machine.run("mkdir --parents /etc/sbus && touch /etc/sbus/lab.toml && systemctl start sbus@lab.socket")
    try:
        lab = "--address /run/sbus/lab.socket"
        with listening(machine, "", "bob", options=lab) as received:
            machine.run("sbusctl pub where main", user="alice")
            machine.run(f"sbusctl pub {lab} where lab", user="alice")
        assert received == ["where\tlab"]
        assert machine.output("systemctl is-active sbus.service sbus@lab.service").split() == ["active", "active"]
        record = "journalctl --output=verbose --unit=sbus@lab.service SBUS_EVENT=started"
        assert "SBUS_ADDRESS=/run/sbus/lab.socket" in machine.output(record)
    finally:
        machine.run("systemctl stop sbus@lab.socket sbus@lab.service; rm /etc/sbus/lab.toml")


def test_the_feed_of_the_network_is_on_the_bus(machine: Container) -> None:
    machine.run("systemctl start sbus-feed@netlink.service")
    try:
        with listening(machine, "net/link/", "bob") as received:
            machine.wait_for("sbusctl members net/link/x | grep --quiet bob")  # the feed has a subscription too
            machine.run("sbusctl pub net/request", user="alice")
        assert received[0].startswith("net/link/")
        pid = machine.output("systemctl show --property=MainPID --value sbus-feed@netlink.service")
        assert machine.output(f"stat --format=%U /proc/{pid}") == "sbus-feed"
    finally:
        machine.run("systemctl stop sbus-feed@netlink.service")
