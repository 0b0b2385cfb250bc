"""Units that let the service manager connect to the bus for them, OpenFile= of systemd.service(5): sbus(7) warns of it."""

from __future__ import annotations

import re

from tests.support.container import Container
from tools.stage import ROOT

UNIT = re.search(
    r"^\.Bd -literal -offset indent\n(\[Service\]\nUser=.*?)^\.Ed$", (ROOT / "man/sbus.7").read_text("utf-8"), re.DOTALL | re.MULTILINE
)
"""The example of the manual."""

ASK = """
import contextlib, os, socket, sys
bus = socket.socket(fileno=3) if "LISTEN_FDS" in os.environ else socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if "LISTEN_FDS" not in os.environ:
    bus.connect("/run/sbus.socket")
answers = [os.environ.get("LISTEN_FDNAMES", "none"), str(os.getuid()), str(os.getpid()), str(bus.type == socket.SOCK_SEQPACKET)]
for question in (b"!/cred/whoami", b"!/bus/stats"):
    bus.send(b"CMSG " + question)
    answers.append(bus.recv(409600).partition(b"\\0")[2].decode()[:40])
bus.send(b"SUB !/cred//0//letters")
with contextlib.suppress(BrokenPipeError):
    # A refused subscription to another's secret ends the connection, maybe before this.
    bus.send(b"CMSG !/bus/ping\\0done")
answers.append(bus.recv(409600).split(b" ")[1].split(b"\\0")[0].decode())
print("|".join(answers))
"""


def failure_text(machine: Container, unit: str) -> list[str]:
    """Return what the service *unit*, run to its end as alice, says of itself and of the bus."""
    machine.run("cat > /run/systemd/system/example.service", stdin=unit)
    machine.run("cat > /opt/ask.py && chmod 644 /opt/ask.py", stdin=ASK)
    machine.run("systemctl daemon-reload && systemctl start --wait example.service")
    lines = machine.journal("--unit=example.service --output=cat --identifier=ask").splitlines()
    return lines[-1].split("|")


def test_a_connection_of_the_service_manager_is_root_s(machine: Container) -> None:
    assert UNIT is not None
    start = "ExecStart=/usr/bin/python3 /opt/ask.py\nType=oneshot\nSyslogIdentifier=ask\n"
    unit = re.sub(r"^ExecStart=.*\n", start, UNIT[1], flags=re.MULTILINE)
    assert "User=alice\nOpenFile=/run/sbus.socket:bus\n" in unit
    uid, gid = machine.output("id -u; id -g", user="alice").split()
    name, own, pid, is_packets, cred, stats, last = failure_text(machine, unit)
    # The program is alice's; what it holds is the connection of the process that became it, when that was still root's.
    assert (name, own, is_packets) == ("bus", uid, "True")
    assert cred == f"!/cred/0/0/{pid}"
    # So it is an owner, and may have what is root's alone.
    assert stats.startswith('{"scope":"bus"')
    assert last == "!/bus/ping"
    name, own, pid, is_packets, cred, stats, last = failure_text(machine, unit.replace("OpenFile=/run/sbus.socket:bus\n", ""))
    assert (name, own, is_packets, cred) == ("none", uid, "True", f"!/cred/{gid}/{uid}/{pid}")
    assert stats.startswith('{"scope":"connection"')
    assert last == "!/bus/error"
    machine.run("rm /run/systemd/system/example.service /opt/ask.py && systemctl daemon-reload")
