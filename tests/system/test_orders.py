"""The packages in every order: after each step the bus is restarted and serves, and what a package brings holds just while it is there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import boot

ORDERS = tuple(itertools.permutations(("sbusd", "sbus-relay", "sbus-recorder")))
"""dpkg allows them all: what each of them needs is python3-sbusd, which is there throughout."""

RULES = {"sbus-relay": {"50-relay.toml"}, "sbus-recorder": {"50-recorder.toml", "50-live.toml"}}
"""The rules that packages bring."""


@pytest.fixture(scope="module")
def shared(built: Packages) -> Iterator[Container]:
    """A machine with the package that the others need; each test leaves it so."""
    made = boot(built)
    try:
        made.run(f"dpkg --install /opt/packages/{built.python.name}")
        yield made
    finally:
        made.stop()


def _serves(machine: Container) -> None:
    """The bus starts again, could use all of its configuration, and takes a message from one user to another."""
    uid = machine.output("systemctl restart sbus.service && sbusd --check-config >&2 && id -u bob")
    listener = machine.start(f"sbusctl sub -n 1 --timeout 60 '!/cred//{uid}//talk'", user="bob")
    stats = machine.wait_for("sbusctl stats --json=short | grep --invert-match '\"subscriptions\":0'").stdout
    assert '"configuration_faults":0' in stats
    machine.run(f"sbusctl pub '!/cred//{uid}//talk' hello", user="alice")
    received, errors = listener.communicate(timeout=60)
    assert (received, errors, listener.returncode) == (f"!/cred//{uid}//talk\thello\n", "", 0)


def _check(machine: Container, installed: set[str], *, restarts: bool = True) -> None:
    """The machine is well with the packages *installed*, and also after a restart of the bus if it *restarts*."""
    if "sbusd" in installed:
        # A user without a rule may publish there; only the package's trigger has reloaded the bus.
        test = "! sbusctl pub relay/x && sbusctl whoami" if "sbus-relay" in installed else "sbusctl pub relay/x"
        machine.wait_for(f"{test} && systemctl is-active sbus.service", user="alice")
        tap = f"runuser -u sbus-recorder -- {_TAP}" if "sbus-recorder" in installed else f"! runuser -u nobody -- {_TAP}"
        machine.wait_for(tap)
        if restarts:
            _serves(machine)
            machine.run(f"{test} && test $(systemctl is-active sbus.service) = active", user="alice")
            machine.run(tap)
    active = "systemctl list-units --plain --no-legend --state=active 'sbus.*'"
    nothing = "" if "sbusd" in installed else f"ls /run/sbus.socket /usr/bin/sbusd; {active};"
    failed = "systemctl list-units --plain --no-legend --failed && systemctl is-system-running"
    rules = f"cd /usr/lib/sbus/sbusd.toml.d && ls {' '.join(sorted(set().union(*RULES.values())))}"
    state, *there = machine.run(f"{nothing} {failed}; {rules}", check=False).stdout.splitlines()
    assert state == "running"  # what else is there or has failed would be before it
    assert set(there) == set().union(*(RULES[package] for package in installed & RULES.keys()))


_TAP = """python3 -c '
import socket
from sbus.protocol import controls
bus = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
bus.connect("/run/sbus.socket")
bus.send(b"CMSG " + controls.TAP_ON + bytes(1) + b"none")
bus.send(b"CMSG !/bus/ping" + bytes(1) + b"x")
assert bus.recv(1000).startswith(b"CMSG !/bus/ping")
'"""
"""Fails if the user may not see all traffic."""


def _check_that_nothing_is_left(machine: Container) -> None:
    """No file of a purged package is left, and its users stay, locked: their numbers must not pass to other users."""
    left = machine.run(
        "find /etc/sbus /usr/lib/sbus /usr/share/sbus /run/sbus /var/lib/systemd/timers /var/lib/sbus* -name '*sbus*'", check=False
    )
    assert left.stdout == ""
    names = {"sbus", "sbus-feed", "sbus-dbus", "sbus-relay", "sbus-recorder", "sbus-pipeline", "sbus-live", "sbus-ship"}
    users = {line.split(":")[0] for line in machine.output("getent passwd").splitlines() if "sbus" in line}
    assert users == names
    assert all(line.split(":")[1].startswith("!") for line in machine.output("getent shadow").splitlines() if "sbus" in line)


def _files(built: Packages) -> dict[str, str]:
    """Return the file of each package."""
    return {"sbusd": built.bus.name, "sbus-relay": built.relay.name, "sbus-recorder": built.recorder.name}


def _every_change() -> list[str]:
    """Return packages to install or purge in turn, each once with every set of the others: an Eulerian circuit."""
    unused = {frozenset(each): list(ORDERS[0]) for count in range(4) for each in itertools.combinations(ORDERS[0], count)}
    path: list[tuple[frozenset[str], str]] = [(frozenset(), "")]
    circuit: list[str] = []
    while path:
        installed, _ = path[-1]
        if unused[installed]:
            package = unused[installed].pop()
            path.append((installed ^ {package}, package))
        else:
            circuit.append(path.pop()[1])
    return [package for package in reversed(circuit) if package]


@pytest.mark.timeout(1800)  # 24 steps
def test_the_bus_serves_after_each_installation_and_purge_with_every_set_of_packages(shared: Container, built: Packages) -> None:
    """The bus restarts once with every set: what a restart reads is what is there, and that does not depend on what was there before."""
    files, installed, seen, restarted = _files(built), set[str](), set[tuple[str, frozenset[str]]](), set[frozenset[str]]()
    for package in _every_change():
        seen.add((package, frozenset(installed)))
        shared.run(f"dpkg --purge {package}" if package in installed else f"dpkg --install /opt/packages/{files[package]}")
        installed ^= {package}
        _check(shared, installed, restarts=frozenset(installed) not in restarted)
        restarted.add(frozenset(installed))
    assert len(seen) == len(files) * 2 ** len(files)
    assert len(restarted) == 2 ** len(files)
    _check_that_nothing_is_left(shared)


@pytest.mark.parametrize("number", [0, 4])  # every set of packages is tested above, and more orders in test_addon_orders.py
def test_the_bus_serves_after_each_removal_and_later_purge_in_every_order(shared: Container, built: Packages, number: int) -> None:
    files, installed = _files(built), set(ORDERS[number])
    shared.run(f"dpkg --install {' '.join(f'/opt/packages/{files[package]}' for package in ORDERS[number])}")
    for package in ORDERS[-1 - number]:
        shared.run(f"dpkg --remove {package}")
        installed.remove(package)
        _check(shared, installed)
    for package in ORDERS[(number + 2) % len(ORDERS)]:
        shared.run(f"dpkg --purge {package}")
        _check(shared, installed)
    _check_that_nothing_is_left(shared)


def test_links_to_removed_rules_do_not_stop_the_bus(fresh: Container, built: Packages) -> None:
    """The administrator has linked rules of packages, which are removed then."""
    fresh.run(f"dpkg --install /opt/packages/{built.relay.name} /opt/packages/{built.recorder.name}")
    link = "mkdir --parents /etc/sbus/sbusd.toml.d && ln --symbolic --force --target-directory=/etc/sbus/sbusd.toml.d"
    rules = "/usr/lib/sbus/sbusd.toml.d"
    fresh.run(f"{link} {rules}/50-relay.toml {rules}/50-recorder.toml && systemctl restart sbus.service && sbusctl whoami")
    fresh.run("dpkg --remove sbus-relay && dpkg --purge sbus-recorder")
    # Immediately, and at the next boot. A reload says what is wrong, and changes nothing.
    for step in ("restart", "reload", "restart"):
        assert (fresh.run(f"systemctl {step} sbus.service", check=False).status == 0) == (step == "restart")
        fresh.run("timeout 60 sbusctl whoami && timeout 60 sbusctl pub hello world")
    assert fresh.run("systemctl is-system-running", check=False).stdout == "running\n"
    # Where it can be seen: the status, the journal, doctor, and who asks beforehand.
    assert "configuration faults: 2 (50-recorder.toml, 50-relay.toml)" in fresh.output("systemctl show --property=StatusText sbus.service")
    reported = fresh.journal("--catalog --unit=sbus.service SBUS_EVENT=configuration-fault")
    assert "50-relay.toml: dangling symbolic link; restore its target or remove the link" in reported
    assert "Subject: A part of the configuration of the bus cannot be used" in reported
    doctor = fresh.run("sbusctl doctor", check=False)
    assert doctor.status == 1
    assert "dangling symbolic link" in doctor.stdout
    checked = fresh.run("sbusd --check-config", check=False)
    assert checked.status == 65
    assert len(checked.stderr.splitlines()) == 2
    fresh.run("rm /etc/sbus/sbusd.toml.d/50-relay.toml /etc/sbus/sbusd.toml.d/50-recorder.toml && systemctl reload sbus.service")
    assert fresh.output("systemctl show --property=StatusText sbus.service").count("faults") == 0
    _serves(fresh)


def test_rules_of_a_removed_user_deny_and_do_not_stop_the_bus(fresh: Container, built: Packages) -> None:
    fresh.run(f"dpkg --install /opt/packages/{built.relay.name} && cp /usr/lib/sbus/sbusd.toml.d/50-relay.toml /etc/sbus/sbusd.toml.d/")
    fresh.run("dpkg --purge sbus-relay && userdel sbus-relay && systemctl restart sbus.service && sbusctl whoami")
    assert "EPERM" in fresh.run("sbusctl pub relay/x", user="alice", check=False).stderr
    fresh.run("sbusctl pub relay/x && sbusctl whoami")
    fresh.run("sbusctl pub other/x", user="alice")
    record = "journalctl --output=json --unit=sbus.service SBUS_EVENT=configuration-fault"
    fresh.wait_for(f"{record} | grep --quiet --fixed-strings 'unknown user \\\"sbus-relay\\\"'")
    assert "FAIL  faults" in fresh.run("sbusctl doctor", check=False).stdout.replace("fail ", "FAIL ")


def test_rules_are_overridden_by_name_and_masked(fresh: Container, built: Packages) -> None:
    fresh.run(f"dpkg --install /opt/packages/{built.relay.name} && systemctl restart sbus.service")
    assert fresh.run("sbusctl pub relay/x", user="alice", check=False).status != 0
    for mask in ("ln --symbolic /dev/null", "touch"):
        fresh.run(f"{mask} /etc/sbus/sbusd.toml.d/50-relay.toml && systemctl reload sbus.service")
        fresh.wait_for("sbusctl pub relay/x", user="alice")
        fresh.run("rm /etc/sbus/sbusd.toml.d/50-relay.toml && systemctl reload sbus.service")
        fresh.wait_for("! sbusctl pub relay/x", user="alice")
