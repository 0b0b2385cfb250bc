"""The feeds of units and sessions as services, on a machine with a systemd of its own: storms, restarts, and who may publish."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.container import Container

FEED = "sbus-feed@systemd.service"
RECEIVED = "/home/alice/units"
POLICY = "/usr/share/dbus-1/system.d/sbus-feed.conf"
UNITS = 10
ROUNDS = 5
"""How often each unit is started and stopped in a storm: with ten units at a time the feed has dozens of jobs under way throughout."""

SECONDS = 60.0
STORM = """[Unit]
CollectMode=inactive-or-failed
[Service]
ExecStart=sleep infinity
"""
BROKEN = """[Service]
Type=oneshot
ExecStart=false
"""

LOSSES: dict[str, set[str]] = {
    "systemctl restart dbus.service": {"disconnected"},
    "systemctl daemon-reexec": {"restarted"},
    "systemctl daemon-reload": set(),
    "systemctl restart sbus.service": set(),
}
"""Restarts, and the losses that the feed reports after them."""

Received = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def feeding(machine: Container) -> Iterator[Container]:
    """A machine with the feed and a listener, and units to start and stop."""
    for name, text in (("storm@.service", STORM), ("broken.service", BROKEN)):
        machine.run(f"cat >/etc/systemd/system/{name}", stdin=text)
    machine.run(f"systemctl daemon-reload; systemctl start sbus.socket; sbusctl whoami; rm -f {RECEIVED}")
    machine.run(f"systemd-run --quiet --collect --uid=alice --unit=listener.service sh -c 'exec sbusctl sub systemd/ >{RECEIVED}'")
    machine.wait_for("sbusctl --no-legend members systemd/x | grep --quiet .")
    machine.run(f"systemctl start {FEED}")
    yield machine
    machine.run(f"systemctl stop {FEED} listener.service 'storm@*.service'; rm /etc/systemd/system/storm@.service", check=False)


def received(machine: Container) -> Received:
    """Return what alice has received so far."""
    lines = machine.output(f"cat {RECEIVED}").splitlines()
    pairs = [line.partition("\t")[::2] for line in lines]
    return [(key, json.loads(payload)) for key, payload in pairs if key != "systemd/request"]


def states(messages: Received) -> dict[str, tuple[str, str, str]]:
    """Return the last state of each unit: active state, substate and result."""
    last = {payload["unit"]: payload for key, payload in messages if key.startswith("systemd/unit/")}
    found = {name: (each["active"], each["sub"], each["result"] or "") for name, each in last.items() if each["event"] != "remove"}
    # A unit that was unloaded is inactive, unless it had failed.
    gone = {name: (each["active"], each["sub"], each["result"] or "") for name, each in last.items() if each["event"] == "remove"}
    return found | gone


def shown(machine: Container, name: str) -> tuple[str, str, str]:
    """Return the state of a unit as systemctl shows it."""
    lines = machine.output(f"systemctl show --property=ActiveState,SubState,Result {name}").splitlines()
    values = dict(line.split("=", 1) for line in lines)
    return values["ActiveState"], values["SubState"], values.get("Result", "")


def settle(machine: Container, mark: str) -> Received:
    """Return what alice has received when the last states of the units of the storm, and of some others, are those that systemctl shows."""
    machine.run(f"systemd-run --quiet --wait --unit={mark} true")
    machine.wait_for(f'grep \'^systemd/unit/{mark}.service\' {RECEIVED} | grep --quiet -e \'"event":"remove"\' -e \'"active":"inactive"\'')
    names = [*(f"storm@{number}.service" for number in range(UNITS)), "broken.service", "dbus.service", "sbus.service"]
    expected = {name: shown(machine, name) for name in names}
    end = time.monotonic() + SECONDS
    while True:
        # A unit that was loaded again is looked up first, so its state can follow a moment later.
        messages = received(machine)
        found = states(messages)
        # A unit that was never started since the feed is there is unknown to it, and inactive.
        differing = {
            name: (found.get(name), state) for name, state in expected.items() if found.get(name, ("inactive", "dead", "success")) != state
        }
        if not differing:
            return messages
        assert time.monotonic() < end, differing
        time.sleep(0.5)


def settle_jobs(machine: Container) -> dict[str, dict[str, Any]]:
    """Return the last message about each job that alice has received, when those that have not ended are those that systemctl lists."""
    end = time.monotonic() + SECONDS
    while True:
        # Jobs of the machine itself can run at the same time as those of the test, and longer.
        jobs = {key: payload for key, payload in received(machine) if key.startswith("systemd/job/")}
        listed = {f"systemd/job/{line.split()[0]}" for line in machine.output("systemctl list-jobs --plain --no-legend").splitlines()}
        running = {key: payload for key, payload in jobs.items() if payload["event"] != "remove"}
        if running.keys() <= listed:
            return jobs
        assert time.monotonic() < end, (running, listed)
        time.sleep(0.5)


def test_it_runs_without_privileges_and_begins_with_all_units(feeding: Container) -> None:
    pid = feeding.output(f"systemctl show --property=MainPID --value {FEED}")
    assert feeding.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == ["sbus-feed", "CapEff:", "0" * 16]
    feeding.wait_for(f"grep --quiet ^systemd/snapshot/end {RECEIVED}")
    messages = received(feeding)
    units = {payload["unit"] for key, payload in messages if key.startswith("systemd/unit/")}
    listed = {json_unit["unit"] for json_unit in json.loads(feeding.output("systemctl list-units --all --output=json"))}
    # systemctl asks for what is loaded now; units that come and go meanwhile can differ.
    assert len(units & listed) >= 0.9 * len(listed)
    assert {"dbus.service", "sbus.service", "multi-user.target"} <= units


def test_only_the_feed_publishes_states_and_everybody_may_request_them(feeding: Container) -> None:
    refused = feeding.run("sbusctl pub systemd/unit/forged.service '{}'", user="bob", check=False)
    assert refused.status != 0
    feeding.run("sbusctl pub systemd/request x", user="bob")
    feeding.wait_for(f'grep ^systemd/snapshot/end {RECEIVED} | grep --quiet \'"reason":"request"\'')
    assert all("forged" not in key for key, _ in received(feeding))


def send_forged(machine: Container) -> None:
    """Let bob send the feed a signal that a unit is gone."""
    pid = machine.output(f"systemctl show --property=MainPID --value {FEED}")
    (name,) = [each["name"] for each in json.loads(machine.output("busctl list --json=short")) if str(each["pid"]) == pid]
    removed = "org.freedesktop.systemd1.Manager.UnitRemoved string:dbus.service objpath:/x"
    machine.run(f"dbus-send --system --type=signal --dest={name} /org/freedesktop/systemd1 {removed}", user="bob")


def forged(machine: Container, mark: str) -> int:
    """Return how many forged signals the feed has counted, after all that has happened so far."""
    assert states(settle(machine, mark))["dbus.service"][0] == "active"
    before = len(received(machine))
    machine.run("sbusctl pub systemd/request x")
    end = time.monotonic() + SECONDS
    while True:
        found = [payload for key, payload in received(machine)[before:] if key == "systemd/snapshot/end"]
        if found:
            return int(found[-1]["forged"])
        assert time.monotonic() < end
        time.sleep(0.2)


def test_dbus_keeps_signals_of_other_users_from_the_feed(feeding: Container) -> None:
    send_forged(feeding)
    assert forged(feeding, "after-forged") == 0
    feeding.run(f"mv {POLICY} /root/policy; systemctl reload dbus.service")
    try:
        send_forged(feeding)
        assert forged(feeding, "after-forged-without-policy") == 1
    finally:
        feeding.run(f"mv /root/policy {POLICY}; systemctl reload dbus.service")
    send_forged(feeding)
    assert forged(feeding, "after-forged-again") == 1


def test_a_storm_ends_with_the_right_states_and_each_job_has_its_result(feeding: Container) -> None:
    before = len(received(feeding))
    rounds = f"for i in $(seq {ROUNDS}); do systemctl start storm@$n.service; systemctl stop storm@$n.service; done"
    last = "test $((n % 2)) = 0 || systemctl start storm@$n.service"
    feeding.run(f"for n in $(seq 0 {UNITS - 1}); do ({rounds}; {last}) & done; wait; systemctl start broken.service; true")
    messages = settle(feeding, "after-storm")
    found = states(messages)
    assert found["broken.service"] == ("failed", "failed", "exit-code")
    assert {found[f"storm@{number}.service"][0] for number in range(1, UNITS, 2)} == {"active"}

    storm = messages[before:]
    finished = [payload for key, payload in storm if key.startswith("systemd/job/") and payload["event"] == "remove"]
    assert not [payload for key, payload in storm if key == "systemd/lost"]
    assert len({each["job"] for each in finished}) == len(finished), "a job ends once"
    of_storm = [each for each in finished if each["unit"].startswith("storm@")]
    # Each start and each stop was waited for, so each was a job of its own.
    assert len(of_storm) >= UNITS * 2 * ROUNDS + UNITS // 2
    assert {each["result"] for each in of_storm} == {"done"}
    assert {each["result"] for each in finished if each["unit"] == "broken.service"} == {"failed"}
    changes = [payload for key, payload in storm if key.startswith("systemd/unit/storm@")]
    assert len(changes) < len(of_storm) * 4


def test_it_publishes_sessions(feeding: Container) -> None:
    feeding.run("systemctl start sbus-feed@logind.service")
    feeding.run("systemd-run --quiet --collect --uid=alice --unit=sessions.service sh -c 'exec sbusctl sub logind/ >/home/alice/sessions'")
    feeding.wait_for("sbusctl --no-legend members logind/x | grep --quiet .")
    visitor = feeding.start("cat", user="bob")  # its session lasts until the feed has read it
    feeding.wait_for('grep --quiet \'^logind/session/.*"event":"new".*"user":"bob"\' /home/alice/sessions')
    visitor.communicate("", timeout=60)
    feeding.wait_for('grep --quiet \'^logind/session/.*"event":"remove".*"user":"bob"\' /home/alice/sessions')
    feeding.run("shutdown --no-wall --reboot +300")
    feeding.wait_for('grep --quiet \'^logind/scheduled/shutdown.*"type":"reboot"\' /home/alice/sessions')
    feeding.run("shutdown -c --no-wall")
    feeding.wait_for("grep '^logind/scheduled/shutdown' /home/alice/sessions | tail -n 1 | grep --quiet '\"type\":null'")
    feeding.run("systemctl stop sessions.service sbus-feed@logind.service")


def test_it_publishes_signals_of_dbus(feeding: Container) -> None:
    table = """[[signal]]
key = "dbus/names/{arg0}"
sender = "org.freedesktop.DBus"
interface = "org.freedesktop.DBus"
member = "NameOwnerChanged"
arg0 = "org.freedesktop.hostname1"
"""
    feeding.run("cat >/etc/sbus/feed-dbus.toml", stdin=table)
    assert feeding.output("sbus-feed dbus --check") == "configuration is valid for the user sbus-dbus"
    feeding.run("systemctl start sbus-feed@dbus.service")
    feeding.run("systemd-run --quiet --collect --unit=names.service sh -c 'exec sbusctl sub --count 1 dbus/names/ >/tmp/names'")
    feeding.wait_for("sbusctl --no-legend members dbus/names/x | grep --quiet .")
    feeding.run("hostnamectl")
    feeding.wait_for("test -s /tmp/names")
    assert feeding.output("cat /tmp/names").startswith("dbus/names/org.freedesktop.hostname1\t")
    feeding.run("systemctl stop sbus-feed@dbus.service")


def test_without_the_library_it_says_which_package_is_missing(feeding: Container) -> None:
    feeding.run(f"systemctl stop {FEED}; mv /usr/lib/python3/dist-packages/dbus_fast /root/")
    assert feeding.run(f"systemctl start {FEED}", check=False).status != 0
    properties = feeding.output(f"systemctl show --property=ExecMainStatus,NRestarts {FEED}").split()
    assert sorted(properties) == ["ExecMainStatus=78", "NRestarts=0"]
    assert "install python3-dbus-fast" in feeding.journal(f"--unit={FEED}")
    feeding.run(f"mv /root/dbus_fast /usr/lib/python3/dist-packages/; systemctl reset-failed {FEED}; systemctl start {FEED}")


@pytest.mark.parametrize("instance", ["systemd", "logind", "dbus"])
def test_systemd_finds_little_that_it_could_do(feeding: Container, instance: str) -> None:
    said = feeding.output(f"systemd-analyze security --no-pager sbus-feed@{instance}.service | tail -n 1")
    exposure = float(said.split(":")[1].split()[0])
    assert exposure <= 1.5, said


def test_users_have_feeds_of_their_own_units(feeding: Container) -> None:
    feeding.run("loginctl enable-linger alice")
    feeding.wait_for("systemctl is-active user@$(id --user alice).service")
    feeding.run("systemctl --user start sbus.socket sbus-feed@systemd.service", user="alice")
    watch = "sbusctl --user sub --count 1 systemd/unit/mine.service >~/mine"
    feeding.run(f"systemd-run --user --quiet --unit=watch.service sh -c '{watch}'", user="alice")
    members = "sbusctl --user --no-legend members systemd/unit/mine.service"
    feeding.wait_for(f"runuser -u alice -- env XDG_RUNTIME_DIR=/run/user/$(id --user alice) {members} | grep --quiet .")
    feeding.run("systemd-run --user --quiet --wait --unit=mine.service true", user="alice")
    feeding.wait_for("grep --quiet mine.service /home/alice/mine")


@pytest.mark.parametrize("command", LOSSES)
def test_in_a_storm_restarts_are_survived(feeding: Container, command: str) -> None:
    before = len(received(feeding))
    mark = command.replace(" ", "-").replace(".", "-")
    # systemctl speaks to systemd without D-Bus; some calls fail while systemd restarts itself, and the next one then decides.
    one = f"for i in $(seq {ROUNDS}); do systemctl start storm@$n.service; systemctl stop storm@$n.service; done; systemctl $last storm@$n"
    feeding.run(
        f"for n in $(seq 0 {UNITS - 1}); do test $((n % 2)) = 0 && last=start || last=stop; ({one}) >/dev/null 2>&1 & done;"
        f"sleep 0.3; {command}; wait"
    )
    for number in range(UNITS):
        feeding.run(f"systemctl {'start' if number % 2 == 0 else 'stop'} storm@{number}.service")
    feeding.wait_for("sbusctl whoami")
    messages = settle(feeding, f"after-{mark}")
    reasons = {payload["reason"] for key, payload in messages[before:] if key == "systemd/lost"}
    assert reasons >= LOSSES[command]
    # systemd itself can connect to a restarted D-Bus more than once.
    assert reasons <= ({"disconnected", "restarted"} if LOSSES[command] else set())
    # Each job that was announced has ended, with a result unless signals were missing.
    assert settle_jobs(feeding)
    if not reasons:
        assert all(
            payload["result"] for key, payload in messages[before:] if key.startswith("systemd/job/") and payload["event"] == "remove"
        )
    assert feeding.output(f"systemctl show --property=NRestarts --value {FEED}") == "0"
