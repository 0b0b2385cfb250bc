"""Calls between hosts as a service: the package sbus-relay on a booted machine, with Debian's Redis, and a host of one twin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from sbus_programs.config.relay import REDIS
from tests.support.catalog import CATALOG, entries
from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, BUS, boot

UNIT = "sbus-relay.service"
REDIS_UNIT = "redis-server@sbus-relay.service"
CLIENT = f"redis-cli -s {REDIS}"
"""What the manual gives root."""
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
    """A machine with the bus and the relay's package without a configuration."""
    machine = boot(built, installed=BUS)
    try:
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
    relayed.run(f"systemd-run --quiet --collect --uid=sbus-relay --unit=answerer.service python3 /opt/programs/responder.py echo {REDIS}")
    return relayed


def push(machine: Container, *requests: dict[str, Any]) -> None:
    """Push *requests* as the commands of a shell."""
    lines = "".join(f"RPUSH msgbus.system.local '{json.dumps(request)}'\n" for request in requests)
    machine.run(CLIENT, stdin=lines)


def answer(machine: Container, ret: str) -> dict[str, Any]:
    """Return the next answer in *ret*, as a shell gets it."""
    said = machine.output(f"{CLIENT} --raw BLPOP {ret} 30")
    value: dict[str, Any] = json.loads(said.splitlines()[1])
    return value


def log(machine: Container, options: str = "") -> str:
    """Return the relay's records."""
    return machine.journal(f"--unit={UNIT} {options}")


def test_without_its_number_it_says_so_once(relayed: Container) -> None:
    assert relayed.run(f"systemctl is-enabled {UNIT}", check=False).stdout == "disabled\n"
    assert relayed.run(f"systemctl start {UNIT}", check=False).status != 0
    shown = relayed.output(f"systemctl show --property=ExecMainStatus,NRestarts,ActiveState {UNIT}").split()
    assert sorted(shown) == ["ActiveState=failed", "ExecMainStatus=78", "NRestarts=0"]
    assert "/etc/sbus/relay.toml: twin: not set; write the number of this host" in log(relayed)


def test_a_shell_calls_its_own_twin(twin: Container) -> None:
    push(twin, {"cmd": "echo", "dst": [1001], "ret": "first", "dat": DATA})
    answered = answer(twin, "first")
    assert (answered["dat"], answered["err"], answered["src"]) == (DATA, "", 1001)
    pid = twin.output(f"systemctl show --property=MainPID --value {UNIT}")
    assert twin.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == ["sbus-relay", "CapEff:", "0" * 16]
    # Its lease of a second may have ended for a moment.
    twin.wait_for("sbusctl relay status --json=short | grep --quiet '\"relays\": *1'")
    status = json.loads(twin.output("sbusctl relay status --json=short"))
    assert status["counters"]["requests-answered"] == 1


def test_only_the_relay_can_publish_attempts_on_the_bus(twin: Container) -> None:
    listener = twin.start("sbusctl sub -n 1 --timeout 60 relay/attempt")
    twin.wait_for("sbusctl trace --json=short relay/attempt | grep --quiet '\"recipients\":\\[{'")
    refused = twin.run("sbusctl pub relay/attempt forged", user="alice", check=False)
    assert "EPERM" in refused.stderr
    push(twin, {"cmd": "echo", "dst": [1002], "ret": "nowhere"})
    assert "destination not found" in answer(twin, "nowhere")["err"]
    reported, errors = listener.communicate(timeout=60)
    assert listener.returncode == 0, errors
    told_of = json.loads(reported.partition("\t")[2])
    assert (told_of["twin"], told_of["code"]) == (1002, "unknown"), told_of


def test_only_members_of_its_group_can_call_from_the_bus(twin: Container) -> None:
    twin.wait_for("sbusctl trace --json=short relay/1001/echo | grep --quiet '\"recipients\":\\[{'")
    refused = twin.run("sbusctl call --twin 1001 echo hello", user="alice", check=False)
    assert refused.status != 0
    assert "EPERM" in refused.stderr
    twin.run("usermod --append --groups sbus-relay bob")
    assert twin.output("sbusctl call --twin 1001 echo hello", user="bob") == "hello"


def test_its_redis_is_for_root_and_its_user_alone(twin: Container) -> None:
    """A client of Redis could do what no rule of the bus allows; so not even those who may call other hosts can use it."""
    assert "sbus-relay" in twin.output("id --groups --name bob").split()
    for user in ("alice", "bob"):
        refused = twin.run(f"{CLIENT} RPUSH msgbus.system.local x; {CLIENT} KEYS '*'; cat /var/lib/sbus-relay/*", user=user, check=False)
        assert (refused.stdout, refused.status != 0) == ("", True), refused
        said = twin.run("sbusctl relay status", user=user, check=False)
        assert "the relay's Redis: use sudo" in said.stderr
    # The Redis of every other package runs as user redis.
    assert twin.run(f"runuser --user=redis -- {CLIENT} PING", check=False).stdout == ""
    assert twin.output(f"{CLIENT} PING; runuser --user=sbus-relay -- {CLIENT} PING").split() == ["PONG", "PONG"]
    assert twin.output(f"{CLIENT} CONFIG GET append*").split()[1:] != []
    kept = dict(zip(*[iter(twin.output(f"{CLIENT} CONFIG GET append*").split())] * 2, strict=True))
    assert (kept["appendonly"], kept["appendfsync"]) == ("yes", "always")
    pid = twin.output(f"systemctl show --property=MainPID --value {REDIS_UNIT}")
    assert twin.output(f"stat --format=%U /proc/{pid}; ls /proc/{pid}/net/tcp >/dev/null; wc --lines </proc/{pid}/net/tcp").split() == [
        "sbus-relay",
        "1",
    ]
    assert twin.output(f"stat --format='%a %U' {REDIS} $(dirname {REDIS}) /var/lib/sbus-relay").splitlines() == ["700 sbus-relay"] * 3
    exposed = "nsenter --net --target 1 -- redis-cli -p 6379 KEYS 'msgbus.*'"
    assert twin.output(exposed).split() == []


def test_the_drop_in_of_the_manual_lets_a_group_use_it(twin: Container) -> None:
    drop_in = "/etc/systemd/system/redis-server@sbus-relay.service.d"
    text = "[Service]\nGroup=rmb\nUMask=0007\nRuntimeDirectoryMode=0750\n"
    twin.run(f"groupadd rmb; usermod --append --groups rmb alice; mkdir --parents {drop_in}; printf '{text}' >{drop_in}/rmb.conf")
    twin.run("sed --in-place 's/^unixsocketperm 700/unixsocketperm 770/' /etc/sbus/redis.conf")
    try:
        twin.run(f"systemctl daemon-reload; systemctl restart {REDIS_UNIT}")
        assert twin.output(f"{CLIENT} PING", user="alice") == "PONG"
        assert twin.run(f"{CLIENT} PING", user="bob", check=False).stdout == ""
    finally:
        twin.run("sed --in-place 's/^unixsocketperm 770/unixsocketperm 700/' /etc/sbus/redis.conf")
        twin.run(f"rm --recursive {drop_in}; systemctl daemon-reload; systemctl restart {REDIS_UNIT}")
    assert twin.run(f"{CLIENT} PING", user="alice", check=False).stdout == ""


def test_other_users_of_the_host_are_rejected(twin: Container) -> None:
    """The hardened service still sees whose connection it is."""
    post = (
        "python3 -c 'import urllib.error, urllib.request\n"
        'try: print(urllib.request.urlopen("http://127.0.0.1:8051/zbus-remote", b"{}").status)\n'
        "except urllib.error.HTTPError as refusal: print(refusal.code)'"
    )
    assert twin.output(post, user="alice") == "403"
    assert twin.output(post) == "421"  # understood, and what it says is nothing for this twin
    assert "without keys or certificates only root" in log(twin, "SBUS_EVENT=authentication-failed")


def test_restarts_and_kills_lose_nothing(twin: Container) -> None:
    """Of the relay and of Redis, while requests are under way."""
    blows = (f"systemctl kill --signal=KILL {REDIS_UNIT}", f"systemctl restart {UNIT}", f"systemctl kill --signal=KILL {UNIT}")
    many = REQUESTS // len(blows)
    for number, blow in enumerate(blows):
        rets = [f"storm-{number * many + each}" for each in range(many)]
        # No answer can come before the blow.
        twin.run("systemctl kill --signal=STOP answerer.service")
        push(twin, *({"cmd": "echo", "dst": [1001], "ret": ret, "dat": DATA, "try": 100} for ret in rets))
        twin.run(blow)
        twin.wait_for(f"{CLIENT} PING && systemctl is-active {UNIT} {REDIS_UNIT}")
        twin.run("systemctl kill --signal=CONT answerer.service")
    everything = " ".join(f"storm-{number}" for number in range(many * len(blows)))
    # Each list is there, has one answer, and nothing is under way any more.
    twin.wait_for(f"test $({CLIENT} EXISTS {everything}) -eq {many * len(blows)} && test $({CLIENT} HLEN msgbus.system.backlog) -eq 0")
    lengths = twin.run(CLIENT, stdin="".join(f"LLEN {ret}\n" for ret in everything.split())).stdout.split()
    assert lengths == ["1"] * (many * len(blows))
    answers = twin.run(f"{CLIENT} --raw", stdin="".join(f"LPOP {ret}\n" for ret in everything.split())).stdout.splitlines()
    assert {(each["dat"], each["err"]) for each in map(json.loads, answers)} == {(DATA, "")}
    twin.wait_for(f"test $(systemctl show --property=NRestarts --value {UNIT}) -eq 1")


def test_its_records_explain_themselves(twin: Container) -> None:
    """What the tests before have made it tell, as an administrator reads it."""
    shown = log(twin, "--catalog --no-hostname")
    subjects = {entry.headers["Subject"] for entry in entries(CATALOG.with_name("sbus-relay.catalog"))}
    reported = {line.strip() for line in re.findall(r"^\S+ Subject: (.*)$", shown, re.MULTILINE)} & subjects
    assert {"The relay has started", "The relay serves this host only", "The relay cannot use Redis"} < reported
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


def test_purge_leaves_the_user_alone(relayed: Container) -> None:
    """Also of a relay that runs; the folder is the administrator's. A key that was made for the relay does not become another user's."""
    relayed.run("install --owner=sbus-relay --mode=600 /dev/null /etc/sbus/shared.key")
    relayed.run(f"systemctl stop answerer.service; rm --recursive /etc/sbus/relay.toml.d; systemctl is-active {UNIT}")
    relayed.run("apt-get purge --yes --quiet=2 sbus-relay && systemctl daemon-reload")
    assert relayed.run("pgrep --list-full --exact sbus-relay; pgrep --list-full --uid sbus-relay", check=False).stdout == ""
    relayed.run("useradd --system newcomer")
    assert relayed.output("stat --format=%U /etc/sbus/shared.key") == "sbus-relay"
    kept = "-path /proc -o -path /sys -o -path /opt -o -path /run -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/log"
    left = relayed.output(f"find / \\( {kept} \\) -prune -o \\( -name '*sbus-relay*' -o -name 'msgbusd*' -o -name 'relay.toml*' \\) -print")
    assert [path for path in left.splitlines() if "sbus_services/relay" not in path] == []
    assert relayed.output("systemctl is-active sbus.socket") == "active"
