"""Messages between hosts as a service: two booted machines that the package sbus-link and its manual page connect."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus_services.link import main
from tests.support.catalog import CATALOG, entries
from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, boot, install
from tools.stage import ROOT

UNIT = "sbus-link.service"
PAGE = (ROOT / "man" / "sbus-link.8").read_text("utf-8")
ADDRESSES = {"alpha": "10.71.0.1", "beta": "10.71.0.2"}
CERTIFICATES = "/root/certificates"
_NUMBERS = itertools.count()

OF_THE_NETWORK = {"PrivateNetwork=", "IPAddressDeny=", "RestrictAddressFamilies=~AF_(INET|INET6)"}
"""What a link may and the bus may not: it communicates with other hosts."""


def example(containing: str) -> str:
    """Return the one literal example of the manual page that has the text *containing*, as man(1) shows it."""
    found = [each.split("\n.Ed")[0] for each in PAGE.split(".Bd -literal -offset indent\n")[1:]]
    (text,) = (each for each in found if containing in each)
    return text.replace("\\e", "\\").replace("\\(dq", '"')


@pytest.fixture(scope="module")
def hosts(built: Packages) -> Iterator[dict[str, Container]]:
    """Two machines with one cable between them, and on both the bus and the link. A NATS server runs on alpha, under the name nats-1."""
    machines: dict[str, Container] = {}
    try:
        for name in ADDRESSES:
            machines[name] = boot(built)
            install(machines[name], built)
            machines[name].run(f"{APT_INSTALL} /opt/packages/{built.link.name}")
        connect(machines)
        names = "\\n".join(f"{address} {name}" for name, address in (*ADDRESSES.items(), ("nats-1", ADDRESSES["alpha"])))
        for machine in machines.values():
            machine.run(f"printf '{names}\\n' >>/etc/hosts")
        yield machines
    finally:
        for machine in machines.values():
            machine.stop()


def connect(machines: dict[str, Container]) -> None:
    """Connect the machines by a cable."""
    number = f"{os.getpid() % 100_000}n{next(_NUMBERS)}"
    ends = {name: f"sb{name[0]}{number}"[:15] for name in machines}
    first, second = ends.values()
    subprocess.run(["ip", "link", "add", first, "type", "veth", "peer", "name", second], check=True)
    for name, machine in machines.items():
        subprocess.run(["ip", "link", "set", ends[name], "netns", str(machine.leader)], check=True)
        inside = ["nsenter", f"--target={machine.leader}", "--net", "--"]
        for words in (["address", "add", f"{ADDRESSES[name]}/24", "dev", ends[name]], ["link", "set", ends[name], "up"]):
            subprocess.run([*inside, "ip", *words], check=True)


def copy(origin: Container, target: Container, names: str, folder: str) -> None:
    """Copy files of the folder with the certificates to *folder* of another machine."""
    packed = origin.output(f"cd {CERTIFICATES} && tar --create {names} | base64")
    target.run(f"mkdir --parents {folder} && base64 --decode | tar --extract --no-same-owner --directory={folder}", stdin=packed)


@pytest.fixture(scope="module")
def linked(hosts: dict[str, Container]) -> dict[str, Container]:
    """The machines after what the manual page says."""
    alpha = hosts["alpha"]
    alpha.run(f"mkdir {CERTIFICATES} && cd {CERTIFICATES} && {example('req -x509')}")
    copy(alpha, alpha, "nats-1.pem nats-1.key authority.pem", "/etc/nats")
    alpha.run("chown --recursive nats /etc/nats")
    alpha.run(f"{example('sbusctl link config')}; systemctl restart nats-server.service")
    for name, machine in hosts.items():
        copy(alpha, machine, f"{name}.pem {name}.key authority.pem", "/etc/sbus")
        machine.run("cat >/etc/sbus/link.toml", stdin=example('realm = "R"').replace("alpha", name))
        machine.run(f"chown sbus-link /etc/sbus/{name}.key; chmod 0400 /etc/sbus/{name}.key; sbus-link --check")
        machine.run(f"systemctl reset-failed {UNIT}; systemctl enable --quiet --now {UNIT}")
    for name, other in (("alpha", "beta"), ("beta", "alpha")):
        hosts[name].wait_for(f"sbusctl link status | grep --quiet '^{other} '")
    return hosts


def test_without_a_configuration_it_says_so_once(hosts: dict[str, Container]) -> None:
    alpha = hosts["alpha"]
    assert alpha.run(f"systemctl is-enabled {UNIT}", check=False).stdout == "disabled\n"
    assert alpha.run(f"systemctl start {UNIT}", check=False).status != 0
    shown = alpha.output(f"systemctl show --property=ExecMainStatus,NRestarts,ActiveState {UNIT}").split()
    assert sorted(shown) == ["ActiveState=failed", "ExecMainStatus=78", "NRestarts=0"]
    assert "/etc/sbus/link.toml: realm: not set" in alpha.journal(f"--unit={UNIT}")


def test_a_message_appears_on_the_other_host(linked: dict[str, Container]) -> None:
    alpha, beta = linked["alpha"], linked["beta"]
    listener = beta.start("sbusctl sub -n 1 --timeout 60 'host/*/net/'", user="alice")
    beta.wait_for("sbusctl trace --json=short host/alpha/net/x | grep --quiet '\"recipients\":\\[{'")
    beta.run("sbusctl link sync", user="bob")
    alpha.run("sbusctl pub net/test hello", user="bob")
    received, errors = listener.communicate(timeout=60)
    assert (received, errors, listener.returncode) == ("host/alpha/net/test\thello\n", "", 0)


def test_only_the_link_can_publish_messages_of_other_hosts(linked: dict[str, Container]) -> None:
    for key in ("host/alpha/net/x", "link/state"):
        assert "EPERM" in linked["beta"].run(f"sbusctl pub {key} forged", user="alice", check=False).stderr
    refused = linked["beta"].run("timeout 20 sbusctl serve link/status --exec cat", user="alice", check=False)
    assert "EPERM" in refused.stderr


def test_it_runs_without_privileges_and_hardened(linked: dict[str, Container]) -> None:
    alpha = linked["alpha"]
    pid = alpha.output(f"systemctl show --property=MainPID --value {UNIT}")
    assert alpha.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == ["sbus-link", "CapEff:", "0" * 16]
    analyse = "systemd-analyze security --offline=true --no-pager --json=short /usr/lib/systemd/system/"

    def exposed(unit: str) -> set[str]:
        found = json.loads(alpha.output(f"{analyse}{unit}"))
        return {each["name"] for each in found if each["set"] is False and float(each["exposure"] or 0) > 0}

    assert exposed(UNIT) - exposed("sbus.service") == OF_THE_NETWORK
    alpha.run(f"systemd-analyze verify --man=no --recursive-errors=no {UNIT}")


def test_restarts_of_bus_link_and_server_are_survived(linked: dict[str, Container]) -> None:
    alpha, beta = linked["alpha"], linked["beta"]
    for machine, unit in ((alpha, "sbus.service"), (beta, "sbus.service"), (alpha, UNIT), (alpha, "nats-server.service")):
        machine.run(f"systemctl restart {unit}")
    listener = beta.start("sbusctl sub -n 1 --timeout 100 'host/alpha/net/again'", user="alice")
    # Until the hosts know each other again, no host wants the message.
    alpha.wait_for("sbusctl trace --json=short net/again | grep --quiet '\"recipients\":\\[{'")
    alpha.wait_for("sbusctl link status | grep --quiet '^beta '")
    alpha.run("sbusctl pub net/again hello", user="bob")
    received, _ = listener.communicate(timeout=100)
    assert received == "host/alpha/net/again\thello\n"


def test_its_records_explain_themselves(linked: dict[str, Container]) -> None:
    shown = linked["alpha"].journal(f"--unit={UNIT} --catalog --no-hostname")
    subjects = {entry.headers["Subject"] for entry in entries(CATALOG.with_name("sbus-link.catalog"))}
    reported = {line.strip() for line in re.findall(r"^\S+ Subject: (.*)$", shown, re.MULTILINE)} & subjects
    assert {"The link has started", "The network is available", "Another host is connected"} <= reported
    assert "@SBUS" not in shown
    assert "Traceback" not in shown


def test_purge_leaves_the_bus_and_the_user(linked: dict[str, Container]) -> None:
    beta = linked["beta"]
    beta.run("apt-get purge --yes --quiet=2 sbus-link && systemctl daemon-reload")
    assert beta.run("pgrep --list-full --uid sbus-link", check=False).stdout == ""
    # The key of the administrator does not become another user's.
    assert beta.output("stat --format=%U /etc/sbus/beta.key") == "sbus-link"
    kept = "-path /proc -o -path /sys -o -path /opt -o -path /run -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/log"
    left = beta.output(f"find / \\( {kept} \\) -prune -o \\( -name '*sbus-link*' -o -name '*link.toml' \\) -print")
    package = Path(main.__file__).parent.relative_to(ROOT)
    assert [path for path in left.splitlines() if str(package) not in path] == []
    beta.wait_for("sbusctl pub host/alpha/net/x 'any user again'", user="alice")
    assert beta.output("systemctl is-active sbus.socket sbus.service").split() == ["active", "active"]
