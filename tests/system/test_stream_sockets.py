"""The stream socket under systemd: off at first, enabled under a running bus, kept by its restarts."""

from __future__ import annotations

from tests.support.container import Container
from tests.system.numbered_clients import numbered_clients

ENABLE = "systemctl enable --quiet sbus-stream.socket && systemctl restart sbus.service"
"""As sbusd(8) says."""

WHOAMI = """
import socket
bus = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
bus.connect("{address}")
bus.sendall(bytes([18, 0, 0, 0]) + b"CMSG !/cred/whoami")
print(bus.recv(1000)[4:].decode().partition(chr(0))[2])
"""


def whoami(machine: Container, user: str, address: str = "/run/sbus-stream.socket") -> str:
    """Return the credentials of a client of the stream socket."""
    return machine.output("python3 -c '" + WHOAMI.replace("{address}", address) + "'", user=user)


def test_it_is_enabled_under_clients_that_notice_nothing(machine: Container) -> None:
    assert machine.run("systemctl is-enabled sbus-stream.socket", check=False).stdout.strip() == "disabled"
    machine.run("test ! -e /run/sbus-stream.socket")
    with numbered_clients(machine) as clients:
        machine.run(ENABLE)
        clients.wait_for_messages()
        uid = machine.output("id -u alice")
        assert f"/{uid}/" in whoami(machine, "alice")
        for command in ("systemctl restart sbus.service", "systemctl reload sbus.service"):
            machine.run(command)
            clients.wait_for_messages()
            assert f"/{uid}/" in whoami(machine, "alice")
        clients.end().assert_nothing_happened()
    assert "/run/sbus.socket and /run/sbus-stream.socket" in machine.output("systemctl status sbus.service")


def test_the_first_client_of_it_starts_the_bus(machine: Container) -> None:
    machine.run("systemctl enable --quiet sbus-stream.socket; systemctl stop sbus.service sbus.socket sbus-stream.socket")
    machine.run("systemctl start sbus.socket sbus-stream.socket")
    assert "/cred/" in whoami(machine, "bob")
    assert machine.output("systemctl is-active sbus.service") == "active"
    machine.run("systemctl disable --quiet --now sbus-stream.socket && test ! -e /run/sbus-stream.socket")
    machine.run("sbusctl whoami")


def test_a_user_bus_has_one_too(machine: Container) -> None:
    machine.run("systemctl --user enable --quiet --now sbus.socket sbus-stream.socket", user="alice")
    address = f"/run/user/{machine.output('id -u alice')}/sbus-stream.socket"
    assert "/cred/" in whoami(machine, "alice", address)
    machine.run("systemctl --user disable --quiet --now sbus.socket sbus-stream.socket sbus.service", user="alice")
