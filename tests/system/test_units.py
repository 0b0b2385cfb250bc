"""Units of clients on a booted machine: two services of one user, of which only one may publish."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.container import Container

RULES = """
[[policy]]
keys = "sensor/"
publish = "allow"
units = ["indoor.service", "outdoor@*.service"]

[[policy]]
keys = "sensor/"
publish = "deny"
comment = "only the services of the sensors"
"""

RELOAD = "systemctl restart sbus.service && sbusctl whoami"

SERVICE = "[Service]\nUser=alice\nType=oneshot\nExecStart=/usr/bin/sbusctl pub sensor/x 20.5\n"


@pytest.fixture
def ruled(machine: Container) -> Iterator[Container]:
    """The machine with the rules, and three services that publish one message each."""
    machine.run("mkdir --parents /etc/sbus/sbusd.toml.d && cat >/etc/sbus/sbusd.toml.d/60-sensor.toml", stdin=RULES)
    for name in ("indoor.service", "outdoor@.service", "forger.service"):
        machine.run(f"cat >/etc/systemd/system/{name}", stdin=SERVICE)
    machine.run(f"systemctl daemon-reload; {RELOAD}")
    yield machine
    machine.run(
        "cd /etc/systemd/system && rm indoor.service outdoor@.service forger.service /etc/sbus/sbusd.toml.d/60-sensor.toml; "
        f"systemctl daemon-reload; systemctl reset-failed; {RELOAD}"
    )


def test_only_the_named_service_of_a_user_may_publish(ruled: Container) -> None:
    ruled.run("systemctl start indoor.service outdoor@garden.service")
    assert ruled.run("systemctl start forger.service", check=False).status != 0
    assert "only the services of the sensors" in ruled.journal("--unit=forger.service --output=cat")
    # The same program, of the same user, in a session.
    assert ruled.run("sbusctl pub sensor/x 20.5", user="alice", check=False).status != 0
    record = "--unit=sbus.service --output=verbose SBUS_EVENT=policy-refused SBUS_PEER_UNIT=forger.service"
    ruled.wait_for(f"journalctl {record} | grep --quiet SBUS_KEY=sensor/x")


def test_a_user_cannot_start_a_unit_of_that_name(ruled: Container) -> None:
    ruled.run("loginctl enable-linger alice")
    ruled.wait_for("systemctl is-active user@$(id -u alice).service")
    command = "systemd-run --user --machine=alice@ --quiet --wait --pipe --collect --unit=indoor.service sbusctl pub sensor/x 0"
    done = ruled.run(command, check=False)
    assert done.status != 0
    assert "only the services of the sensors" in done.stderr


def test_connections_show_the_unit_and_its_slice(ruled: Container) -> None:
    feed = "systemd-run --quiet --collect --uid=alice --unit=listener --slice=lab.slice sbusctl sub sensor/"
    ruled.run(feed)
    try:
        ruled.wait_for('sbusctl --json=short connections | grep --quiet \'"unit":"listener.service"\'')
        listed = json.loads(ruled.output("sbusctl --json=short connections"))["connections"]
        (found,) = [each for each in listed if each["unit"] == "listener.service"]
        assert (found["slice"], found["user_unit"]) == ("lab.slice", None)
        # The unit outlives a restart of the bus, whose connections are restored.
        ruled.run("systemctl restart sbus.service")
        listed = json.loads(ruled.output("sbusctl --json=short connections"))["connections"]
        assert [each["unit"] for each in listed if each["id"] == found["id"]] == ["listener.service"]
    finally:
        ruled.run("systemctl stop listener.service", check=False)


def test_a_rule_can_be_explained_for_a_unit(ruled: Container) -> None:
    assert "may publish" in ruled.output("sbusctl explain --unit=outdoor@x.service alice publish sensor/x")
    assert ruled.run("sbusctl explain --unit=forger.service alice publish sensor/x", check=False).status == 7
