"""Add-ons that are removed and purged in any order while the bus runs: the bus restarts after each, and nothing fails or stays behind."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, boot, install
from tests.system.test_removal import bus_files

ADDONS = ("sbus-relay", "sbus-link", "sbus-store", "sbus-trigger", "sbus-metrics", "sbus-blob", "sbus-web", "sbus-recorder")
"""The packages that can be removed while the bus stays. The pipeline is in the recorder's, and the feeds are in the bus's."""

_SHUFFLED = random.Random(19).sample(ADDONS, len(ADDONS))

ORDERS = (_SHUFFLED, _SHUFFLED[::-1])
"""Together they remove each add-on before and after each other one."""


@pytest.fixture(scope="module")
def busy(built: Packages) -> Iterator[Container]:
    """A machine with the bus running."""
    made = boot(built)
    try:
        made.run("loginctl enable-linger alice")
        made.wait_for("systemctl is-active user@$(id --user alice).service")
        install(made, built)
        made.run("systemctl enable --now sbus-feed@netlink.service && sbusctl whoami")
        made.run("systemctl --user daemon-reload; systemctl --user enable --now sbus.socket", user="alice")
        yield made
    finally:
        made.stop()


def install_all(machine: Container) -> None:
    """Install all add-ons, and enable what starts without further configuration or packages."""
    names = " ".join(f"/opt/packages/{name}_*.deb" for name in ADDONS)
    machine.run(f"{APT_INSTALL} {names}")
    machine.run("systemctl enable --now sbus-store.service sbus-trigger.service sbus-metrics.socket sbus-blob.socket sbus-pipeline.timer")
    machine.run("systemctl enable sbus-relay.service sbus-link.service sbus-recorder.service")
    machine.run("systemctl --user enable --now sbus.socket sbus-web.service sbus-blob.socket && sbusctl --user whoami", user="alice")


def restart(machine: Container) -> None:
    """Restart the bus as after a boot, and check that it starts with all of its configuration, and that nothing has failed."""
    machine.run("systemctl daemon-reload; systemctl reset-failed sbus.service; systemctl restart sbus.service")
    machine.run("sbusctl whoami && sbusctl pub a b && sbusd --check-config")
    machine.run("sbusctl --user whoami", user="alice")
    assert machine.output("systemctl list-units --failed --plain --no-legend 'sbus*'") == ""
    assert machine.output("systemctl show --property=StatusText --value sbus.service").find("fault") < 0


@pytest.mark.parametrize("order", ORDERS, ids=["order", "reverse"])
def test_the_bus_starts_after_each_removal_in_any_order(busy: Container, order: list[str]) -> None:
    install_all(busy)
    restart(busy)
    state = busy.run("systemctl is-system-running", check=False).stdout
    for name in order:
        busy.run(f"apt-get remove --yes --quiet=2 {name}")
        restart(busy)
    for name in order[::-1]:
        busy.run(f"apt-get purge --yes --quiet=2 {name}")
        restart(busy)
    assert busy.run("systemctl is-system-running", check=False).stdout == state


def test_the_bus_can_be_removed_and_installed_between_its_add_ons(busy: Container, built: Packages) -> None:
    install_all(busy)
    for name in ORDERS[0][:3]:
        busy.run(f"apt-get purge --yes --quiet=2 {name}")
    busy.run("apt-get purge --yes --quiet=2 sbusd")
    install(busy, built)
    busy.run("systemctl start sbus.socket && sbusctl whoami")
    busy.run("systemctl --user daemon-reload; systemctl --user start sbus.socket; sbusctl --user whoami", user="alice")
    for name in ORDERS[0][3:]:
        busy.run(f"apt-get purge --yes --quiet=2 {name}")
        restart(busy)


@pytest.mark.parametrize("name", ADDONS)
def test_a_purge_leaves_nothing(busy: Container, name: str) -> None:
    before = bus_files(busy)
    busy.run(f"{APT_INSTALL} /opt/packages/{name}_*.deb")
    units = [unit.split()[0] for unit in busy.output("systemctl list-unit-files --no-legend 'sbus*' 'redis-server@sbus*'").splitlines()]
    others = ("sbus-pipeline", "sbus-live", "sbus-ship") if name == "sbus-recorder" else ()
    mine = [unit for unit in units if unit.startswith((name, *others))]
    for unit in mine:
        busy.run(f"systemctl enable {unit}; systemctl start {unit}", check=False)
    busy.run(f"apt-get purge --yes --quiet=2 {name}; systemctl daemon-reload")
    assert bus_files(busy) - before == set()
    assert name not in busy.output("journalctl --list-catalog")
    assert busy.output(f"systemctl list-units --all --plain --no-legend '{name}*'") == ""
    restart(busy)
