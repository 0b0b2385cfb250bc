"""Ten clients that publish and hear each other, and a bus that is restarted, reloaded, upgraded and killed under them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import BUS, FILL, boot, install
from tests.system.numbered_clients import numbered_clients

TIMES = 5
"""How often the bus is restarted, reloaded or killed under one set of clients. A run of the second restart begins with what the first one
left, and all later ones are like it; each comes at another point of the traffic, hundreds of messages after the one before."""


@pytest.fixture(scope="module")
def machine(built: Packages, newer: Packages) -> Iterator[Container]:
    """A machine with the bus installed, and newer packages in /opt/newer."""
    made = boot(built, {newer.folder: "/opt/newer"}, installed=BUS)
    try:
        yield made
    finally:
        made.stop()


def pid_of(machine: Container, unit: str = "sbus.service") -> int:
    """Return the process of the bus, 0 for none."""
    return int(machine.output(f"systemctl show --property=MainPID --value {unit}"))


def wait_for_another(machine: Container, pid: int) -> int:
    """Return the process of the bus once it is not *pid*, and serves."""
    machine.wait_for(f"systemctl is-active sbus.service && test $(systemctl show --property=MainPID --value sbus.service) != {pid}")
    return pid_of(machine)


def restores(machine: Container) -> int:
    """Return how often the bus has restored its state, by its journal."""
    return len(machine.journal("--unit=sbus.service SBUS_EVENT=restored --output=cat").splitlines())


@pytest.fixture(autouse=True)
def uncounted(request: pytest.FixtureRequest) -> None:
    """Do not count the starts of earlier tests: systemd allows 30 within 3 minutes."""
    if "machine" in request.fixturenames:
        request.getfixturevalue("machine").run("systemctl reset-failed sbus.service sbus.socket; systemctl start sbus.socket")


def test_restarts_lose_nothing(machine: Container) -> None:
    with numbered_clients(machine) as clients:
        pids = {pid_of(machine)}
        for _ in range(TIMES):
            machine.run("systemctl restart sbus.service")
            pids.add(pid_of(machine))
            clients.wait_for_messages()
        clients.end().assert_nothing_happened()
    assert len(pids) == TIMES + 1


def test_reloads_lose_nothing_and_the_process_stays(machine: Container) -> None:
    with numbered_clients(machine) as clients:
        pid = pid_of(machine)
        before = restores(machine)
        for _ in range(TIMES):
            machine.run("systemctl reload sbus.service")
            clients.wait_for_messages()
        clients.end().assert_nothing_happened()
    assert pid_of(machine) == pid
    # The last reload may still go on.
    machine.wait_for(f"test $(journalctl --unit=sbus.service SBUS_EVENT=restored --output=cat | wc --lines) -ge {before + TIMES}")
    assert restores(machine) - before == TIMES


def test_an_upgrade_loses_nothing(fresh_newer: Container, newer: Packages) -> None:
    with numbered_clients(fresh_newer) as clients, numbered_clients(fresh_newer, user="bob") as other:
        pid = pid_of(fresh_newer)
        install(fresh_newer, newer, "/opt/newer")
        assert pid_of(fresh_newer) not in {0, pid}
        clients.wait_for_messages()
        clients.end().assert_nothing_happened()
        other.end().assert_nothing_happened()
    assert fresh_newer.output("dpkg-query --show --showformat='${Version}' sbusd") == newer.version


@pytest.fixture
def fresh_newer(built: Packages, newer: Packages) -> Iterator[Container]:
    """A machine of its own, for it is upgraded."""
    made = boot(built, {newer.folder: "/opt/newer"}, installed=BUS)
    try:
        yield made
    finally:
        made.stop()


def test_kills_end_no_connection_and_each_loss_is_reported(machine: Container) -> None:
    with numbered_clients(machine) as clients:
        pid = pid_of(machine)
        for _ in range(TIMES):
            machine.run("systemctl kill --signal=KILL --kill-whom=main sbus.service")
            pid = wait_for_another(machine, pid)
            clients.wait_for_messages()
        found = clients.end()
    found.assert_losses_reported()
    assert found.least_announced == TIMES


def test_a_bus_that_hangs_is_replaced_by_the_watchdog_and_its_clients_stay(machine: Container) -> None:
    folder = "/etc/systemd/system/sbus.service.d"
    shown = "systemctl show --property=MainPID --value sbus.service; systemctl show --property=NRestarts --value sbus.service"
    machine.run(f"mkdir {folder} && printf '[Service]\\nWatchdogSec=10s\\n' >{folder}/watchdog.conf && systemctl daemon-reload")
    try:
        machine.run("systemctl restart sbus.service")
        before = machine.output(shown).split()
        # For longer than the watchdog: a bus that does nothing lives, for its loop says so.
        machine.run("sleep 12")
        assert machine.output(shown).split() == before
        with numbered_clients(machine) as clients:
            machine.run("systemctl kill --signal=STOP --kill-whom=main sbus.service && sbusctl whoami")
            pid, restarts = machine.output(shown).split()
            assert (pid != before[0], int(restarts)) == (True, int(before[1]) + 1)
            clients.wait_for_messages()
            found = clients.end()
    finally:
        machine.run(f"rm -r {folder}; systemctl daemon-reload")
    found.assert_losses_reported()
    assert found.least_announced == 1
    assert "Watchdog timeout" in machine.journal("--unit=sbus.service")


def test_a_users_bus_survives_too(machine: Container) -> None:
    machine.run("loginctl enable-linger alice")
    machine.wait_for("systemctl is-active user@$(id -u alice).service")
    machine.run("systemctl --user start sbus.socket", user="alice")
    with numbered_clients(machine, "$XDG_RUNTIME_DIR/sbus.socket") as clients:
        for _ in range(3):
            machine.run("systemctl --user restart sbus.service && systemctl --user reload sbus.service", user="alice")
            clients.wait_for_messages()
        clients.end().assert_nothing_happened()


def test_a_restart_with_a_full_run_loses_nothing(machine: Container) -> None:
    """What the bus leaves to its next process lies in memory that no file system gives."""
    script = f"""
        mount -o remount,size=300k /run; {FILL.format(folder="/run")} || {{ echo not full; exit 1; }}
        systemctl restart sbus.service && systemctl reload sbus.service && sbusctl whoami
        status=$?
        rm /run/fill; mount -o remount,size=50% /run
        exit $status
    """
    with numbered_clients(machine) as clients:
        machine.run(script)
        clients.wait_for_messages()
        clients.end().assert_nothing_happened()


def test_a_stop_ends_the_connections(machine: Container) -> None:
    """A stop closes all connections: no client hangs on a stopped bus."""
    with numbered_clients(machine, options="--interval 3600") as clients:
        machine.run("systemctl stop sbus.service")
        found = clients.ask("report")
        while found.ended < 10:
            found = clients.ask("report")
    assert machine.output("systemctl show --property=NFileDescriptorStore --value sbus.service") == "0"


def test_a_restart_with_a_thousand_connections_loses_nothing(machine: Container) -> None:
    with numbered_clients(machine, user=None, options="--listeners 990") as clients:
        clients.wait_for_messages()
        machine.run("systemctl restart sbus.service")
        clients.wait_for_messages()
        clients.end().assert_nothing_happened()


def test_the_bench_of_the_machine_runs(machine: Container) -> None:
    """A smoke of what make bench-machine measures."""
    assert float(machine.output("python3 /opt/programs/pace.py activation 1").strip("[]")) > 0
    costs = json.loads(machine.output(f"python3 /opt/programs/pace.py connects 10 {pid_of(machine)}"))
    assert costs.keys() == {"to the answer", "bus", "systemd"}
