"""Calls between hosts as a service: the package sbus-relay on a booted machine, with Debian's Redis, and a host of one twin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.catalog import CATALOG, entries
from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, boot, install

UNIT = "sbus-relay.service"
DATA = "aGVsbG8="
REQUESTS = 120
"""How many go through restarts and kills: a third of them is under way at each."""

OF_THE_NETWORK = {
    "PrivateNetwork=",
    "IPAddressDeny=",
    "RestrictAddressFamilies=~AF_(INET|INET6)",
    "RestrictAddressFamilies=~AF_NETLINK",
}
"""What a relay may and the bus may not: it speaks to other hosts, and hears of links and routes."""


@pytest.fixture(scope="module")
def relayed(built: Packages) -> Iterator[Container]:
    """A machine with the bus, a Redis that keeps its word, and the relay's package, which nobody has configured."""
    machine = boot(built)
    try:
        machine.run("printf 'appendonly yes\\nappendfsync always\\n' >>/etc/redis/redis.conf; systemctl restart redis-server.service")
        install(machine, built)
        machine.run(f"{APT_INSTALL} /opt/packages/{built.relay.name}")
        yield machine
    finally:
        machine.stop()


@pytest.fixture(scope="module")
def twin(relayed: Container) -> Container:
    """The same machine as twin 1001, with an application that answers ``echo``."""
    relayed.run("systemctl try-restart sbus.service; mkdir --parents /etc/sbus/relay.toml.d")
    relayed.run("printf 'twin = 1001\\nlease = \"1s\"\\n' >/etc/sbus/relay.toml.d/10-this.toml")
    relayed.run(f"systemctl reset-failed {UNIT}; systemctl enable --quiet --now {UNIT}")
    relayed.run("systemd-run --quiet --collect --uid=alice --unit=answerer.service python3 /opt/programs/answerer.py echo")
    return relayed


def push(machine: Container, *requests: dict[str, Any]) -> None:
    """Push *requests* as the commands of a shell."""
    lines = "".join(f"RPUSH msgbus.system.local '{json.dumps(request)}'\n" for request in requests)
    machine.run("redis-cli", user="alice", stdin=lines)


def answer(machine: Container, ret: str) -> dict[str, Any]:
    """Return the next answer in *ret*, as a shell gets it."""
    said = machine.output(f"redis-cli --raw BLPOP {ret} 30", user="alice")
    value: dict[str, Any] = json.loads(said.splitlines()[1])
    return value


def log(machine: Container, options: str = "") -> str:
    """Return the relay's records."""
    return machine.output(f"journalctl --unit={UNIT} {options}")


def test_without_its_number_it_says_so_once(relayed: Container) -> None:
    assert relayed.run(f"systemctl is-enabled {UNIT}", check=False).stdout == "disabled\n"
    assert relayed.run(f"systemctl start {UNIT}", check=False).status != 0
    shown = relayed.output(f"systemctl show --property=ExecMainStatus,NRestarts,ActiveState {UNIT}").split()
    assert sorted(shown) == ["ActiveState=failed", "ExecMainStatus=78", "NRestarts=0"]
    assert "/etc/sbus/relay.toml: twin: is not there; write the number of this host" in log(relayed)


def test_a_shell_calls_its_own_twin(twin: Container) -> None:
    push(twin, {"cmd": "echo", "dst": [1001], "ret": "first", "dat": DATA})
    answered = answer(twin, "first")
    assert (answered["dat"], answered["err"], answered["src"]) == (DATA, "", 1001)
    pid = twin.output(f"systemctl show --property=MainPID --value {UNIT}")
    assert twin.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == ["sbus-relay", "CapEff:", "0" * 16]
    status = json.loads(twin.output("sbusctl relay status --json=short", user="alice"))
    assert (status["relays"], status["counters"]["requests-answered"]) == (1, 1)


def test_attempts_are_told_on_the_bus_and_by_nobody_else(twin: Container) -> None:
    listener = twin.start("sbusctl sub -n 1 --timeout 60 relay/attempt")
    twin.wait_for("sbusctl trace --json=short relay/attempt | grep --quiet '\"recipients\":\\[{'")
    refused = twin.run("sbusctl pub relay/attempt forged", user="alice", check=False)
    assert "EPERM" in refused.stderr
    push(twin, {"cmd": "echo", "dst": [1002], "ret": "nowhere"})
    assert "destination not found" in answer(twin, "nowhere")["err"]
    told, errors = listener.communicate(timeout=60)
    assert listener.returncode == 0, errors
    told_of = json.loads(told.partition("\t")[2])
    assert (told_of["twin"], told_of["code"]) == (1002, "unknown"), told_of


def test_its_group_calls_from_the_bus_and_nobody_else(twin: Container) -> None:
    twin.wait_for("sbusctl trace --json=short relay/1001/echo | grep --quiet '\"recipients\":\\[{'")
    refused = twin.run("sbusctl call --twin 1001 echo hello", user="alice", check=False)
    assert refused.status != 0
    assert "EPERM" in refused.stderr
    twin.run("usermod --append --groups sbus-relay bob")
    assert twin.output("sbusctl call --twin 1001 echo hello", user="bob") == "hello"


def test_other_users_of_the_host_are_not_heard(twin: Container) -> None:
    """The hardened service still sees whose connection it is."""
    post = (
        "python3 -c 'import urllib.error, urllib.request\n"
        'try: print(urllib.request.urlopen("http://127.0.0.1:8051/zbus-remote", b"{}").status)\n'
        "except urllib.error.HTTPError as refusal: print(refusal.code)'"
    )
    assert twin.output(post, user="alice") == "403"
    assert twin.output(post) == "421"  # heard, and what it says is nothing for this twin
    assert "without keys or certificates only root" in log(twin, "SBUS_EVENT=stranger")


def test_restarts_and_kills_lose_nothing(twin: Container) -> None:
    """Of the relay and of Redis, while requests are under way."""
    blows = ("systemctl kill --signal=KILL redis-server.service", f"systemctl restart {UNIT}", f"systemctl kill --signal=KILL {UNIT}")
    many = REQUESTS // len(blows)
    for number, blow in enumerate(blows):
        rets = [f"storm-{number * many + each}" for each in range(many)]
        # No answer can come before the blow.
        twin.run("systemctl kill --signal=STOP answerer.service")
        push(twin, *({"cmd": "echo", "dst": [1001], "ret": ret, "dat": DATA, "try": 100} for ret in rets))
        twin.run(blow)
        twin.wait_for(f"redis-cli PING && systemctl is-active {UNIT} redis-server.service")
        twin.run("systemctl kill --signal=CONT answerer.service")
    everything = " ".join(f"storm-{number}" for number in range(many * len(blows)))
    # Each list is there, has one answer, and nothing is under way any more.
    twin.wait_for(f"test $(redis-cli EXISTS {everything}) -eq {many * len(blows)} && test $(redis-cli HLEN msgbus.system.backlog) -eq 0")
    lengths = twin.run("redis-cli", stdin="".join(f"LLEN {ret}\n" for ret in everything.split())).stdout.split()
    assert lengths == ["1"] * (many * len(blows))
    answers = twin.run("redis-cli --raw", stdin="".join(f"LPOP {ret}\n" for ret in everything.split())).stdout.splitlines()
    assert {(each["dat"], each["err"]) for each in map(json.loads, answers)} == {(DATA, "")}
    twin.wait_for(f"test $(systemctl show --property=NRestarts --value {UNIT}) -eq 1")


def test_its_records_explain_themselves(twin: Container) -> None:
    """What the tests before have made it tell, as an administrator reads it."""
    shown = log(twin, "--catalog --no-hostname")
    subjects = {entry.headers["Subject"] for entry in entries(CATALOG.with_name("sbus-relay.catalog"))}
    told = {line.strip() for line in re.findall(r"^\S+ Subject: (.*)$", shown, re.MULTILINE)} & subjects
    assert {"The relay works", "The relay listens to this host only", "The relay waits for Redis"} < told
    assert "Documentation: man:sbus-relay(8)" in shown
    assert "@SBUS" not in shown
    assert "Traceback" not in shown


def test_systemd_finds_as_little_as_in_the_bus_but_for_the_network(relayed: Container) -> None:
    analyse = "systemd-analyze security --offline=true --no-pager --json=short /usr/lib/systemd/system/"

    def exposed(unit: str) -> set[str]:
        found = json.loads(relayed.output(f"{analyse}{unit}"))
        return {each["name"] for each in found if each["set"] is False and float(each["exposure"] or 0) > 0}

    assert exposed(UNIT) - exposed("sbus.service") == OF_THE_NETWORK
    relayed.run(f"systemd-analyze verify --man=no --recursive-errors=no {UNIT}")


def test_purge_leaves_nothing(relayed: Container) -> None:
    """Also of a relay that runs; the folder is the administrator's."""
    relayed.run(f"systemctl stop answerer.service; rm --recursive /etc/sbus/relay.toml.d; systemctl is-active {UNIT}")
    relayed.run("apt-get purge --yes --quiet=2 sbus-relay && systemctl daemon-reload")
    assert relayed.run("pgrep --list-full --exact sbus-relay", check=False).stdout == ""
    kept = "-path /proc -o -path /sys -o -path /opt -o -path /run -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/log"
    left = relayed.output(f"find / \\( {kept} \\) -prune -o \\( -name '*sbus-relay*' -o -name 'msgbusd*' -o -name 'relay.toml*' \\) -print")
    assert [path for path in left.splitlines() if "sbusd/relay" not in path] == []
    assert relayed.output("systemctl is-active sbus.socket") == "active"
