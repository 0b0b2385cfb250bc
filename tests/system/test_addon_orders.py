"""Add-ons that are removed and purged in any order while the bus runs: the bus restarts after each, and nothing fails or stays behind."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import ADDONS, BUS, boot, install, installation
from tests.system.test_removal import bus_files

ORDER = random.Random(19).sample(ADDONS, len(ADDONS))
"""One test removes in this order, and another one in the reverse order: each add-on goes before and after each other one."""

PURGE = "apt-get purge --yes --quiet=2"


@pytest.fixture(scope="module")
def busy(built: Packages) -> Iterator[Container]:
    """A machine with all packages and the bus running."""
    made = boot(built, installed=(*BUS, *ADDONS))
    try:
        made.run("loginctl enable-linger alice")
        made.wait_for("systemctl is-active user@$(id --user alice).service")
        made.run("systemctl enable --now sbus-feed@netlink.service && sbusctl whoami")
        made.run("systemctl --user enable --now sbus.socket && sbusctl --user whoami", user="alice")
        yield made
    finally:
        made.stop()


def install_all(machine: Container) -> None:
    """Install all add-ons, and enable what starts without further configuration or packages."""
    machine.run(installation(ADDONS))
    machine.run("systemctl enable --now sbus-store.service sbus-trigger.service sbus-metrics.socket sbus-blob.socket sbus-pipeline.timer")
    machine.run("systemctl enable sbus-relay.service sbus-link.service sbus-recorder.service")
    machine.run("systemctl --user enable --now sbus.socket sbus-web.service sbus-blob.socket && sbusctl --user whoami", user="alice")


def restart(machine: Container) -> None:
    """Restart the bus as after a boot, and check that it starts with all of its configuration, and that nothing has failed."""
    machine.run("systemctl daemon-reload; systemctl reset-failed sbus.service; systemctl restart sbus.service")
    machine.run("sbusctl pub a b && sbusd --check-config")
    assert machine.output("systemctl list-units --failed --plain --no-legend 'sbus*'") == ""
    assert machine.output("systemctl show --property=StatusText --value sbus.service").find("fault") < 0


def is_running(machine: Container) -> str:
    """Return the state of the system, after a check that the bus of alice serves."""
    machine.run("sbusctl --user whoami", user="alice")
    return machine.run("systemctl is-system-running", check=False).stdout


def test_the_bus_starts_after_each_removal_in_an_order_and_can_itself_be_removed_between(busy: Container, built: Packages) -> None:
    install_all(busy)
    restart(busy)
    state = is_running(busy)
    for number, name in enumerate(ORDER):
        if number == 3:
            busy.run(f"{PURGE} sbusd")
            install(busy, built)
            busy.run("systemctl start sbus.socket && sbusctl whoami")
            busy.run("systemctl --user daemon-reload; systemctl --user start sbus.socket; sbusctl --user whoami", user="alice")
        busy.run(f"apt-get remove --yes --quiet=2 {name}")
        restart(busy)
    # What is purged now are configurations of the add-ons, which the bus does not read.
    busy.run(f"{PURGE} {' '.join(ADDONS)}")
    restart(busy)
    assert is_running(busy) == state


def test_the_bus_starts_after_each_purge_in_the_reverse_order_and_nothing_is_left(busy: Container) -> None:
    busy.run(f"dpkg --purge {' '.join(ADDONS)}")  # as far as they are there
    state, before = is_running(busy), {}
    for name in ORDER:
        before[name] = bus_files(busy)
        busy.run(installation((name,)))
        start_all(busy, name)
    busy.run("systemctl reset-failed")  # those that need a configuration
    for number, name in reversed([*enumerate(ORDER)]):
        busy.run(f"{PURGE} {name}; systemctl daemon-reload")
        # The others run and may have written something since, and a restarted bus has another private /tmp.
        running = (*ORDER[:number], "-sbus.service-", "-sbus-feed@")
        assert {path for path in bus_files(busy) - before[name] if not any(other in path for other in running)} == set(), name
        assert name not in busy.output("journalctl --list-catalog")
        assert busy.output(f"systemctl list-units --all --plain --no-legend '{name}*'") == ""
        restart(busy)
    assert is_running(busy) == state


def start_all(machine: Container, name: str) -> None:
    """Enable and start every unit of the package *name*, as far as it starts without a configuration."""
    listed = [line.split()[:2] for line in machine.output("systemctl list-unit-files --no-legend 'sbus*'").splitlines()]
    others = ("sbus-pipeline", "sbus-live", "sbus-ship") if name == "sbus-recorder" else ()
    mine = {unit: state for unit, state in listed if unit.startswith((name, *others)) and "@." not in unit}
    for verb, units in (("enable", [unit for unit, state in mine.items() if state == "disabled"]), ("start", [*mine])):
        if units:
            machine.run(f"systemctl {verb} {' '.join(units)}", check=verb == "enable")
