"""Ten clients that publish and hear each other, and a bus that is restarted, reloaded, upgraded and killed under them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.container import Container
from tests.support.packages import Packages, with_version
from tests.system.conftest import FILL, boot, install
from tests.system.numbered_clients import numbered_clients

TIMES = 20

NEWER = "0.1.0-1+next"


@pytest.fixture(scope="module")
def newer(built: Packages, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """The same packages with a higher version."""
    return with_version(built, NEWER, tmp_path_factory.mktemp("newer"))


@pytest.fixture(scope="module")
def machine(built: Packages, newer: Packages) -> Iterator[Container]:
    """A machine with the bus installed, and newer packages in /opt/newer."""
    made = boot(built, {newer.folder: "/opt/newer"})
    try:
        install(made, built)
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
    assert fresh_newer.output("dpkg-query --show --showformat='${Version}' sbusd") == NEWER


@pytest.fixture
def fresh_newer(built: Packages, newer: Packages) -> Iterator[Container]:
    """A machine of its own, for it is upgraded."""
    made = boot(built, {newer.folder: "/opt/newer"})
    try:
        install(made, built)
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


def test_a_bus_that_hangs_is_replaced_and_its_clients_stay(machine: Container) -> None:
    folder = "/etc/systemd/system/sbus.service.d"
    machine.run(f"mkdir {folder} && printf '[Service]\\nWatchdogSec=10s\\n' >{folder}/watchdog.conf && systemctl daemon-reload")
    try:
        with numbered_clients(machine) as clients:
            machine.run("systemctl restart sbus.service")
            pid = pid_of(machine)
            machine.run("systemctl kill --signal=STOP --kill-whom=main sbus.service")
            wait_for_another(machine, pid)
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


@pytest.mark.parametrize("connections", [10, 1_000])
def test_the_pause_of_a_restart_is_measured(machine: Container, connections: int, capsys: pytest.CaptureFixture[str]) -> None:
    pauses = []
    with numbered_clients(machine, user=None, options=f"--listeners {connections - 10}") as clients:
        for _ in range(5):
            clients.wait_for_messages()
            clients.ask("mark")
            machine.run("systemctl restart sbus.service")
            pauses.append(clients.wait_for_messages().longest_silence)
        clients.end().assert_nothing_happened()
    with capsys.disabled():
        print(f"\npause of a restart with {connections} connections: {', '.join(f'{pause * 1000:.0f}' for pause in sorted(pauses))} ms")


def test_the_start_by_a_connection_is_measured(machine: Container, capsys: pytest.CaptureFixture[str]) -> None:
    said = machine.output("python3 /opt/programs/pace.py activation 5")
    assert said.count(",") == 4
    with capsys.disabled():
        print(f"\nfrom the connect that starts the bus to its first answer: {said} s")


def test_the_cost_of_the_descriptor_store_is_measured(machine: Container, capsys: pytest.CaptureFixture[str]) -> None:
    folder = "/etc/systemd/system/sbus.service.d"
    kept = [cost_of_connections(machine) for _ in range(3)]
    machine.run(f"mkdir {folder} && printf '[Service]\\nFileDescriptorStoreMax=0\\n' >{folder}/store.conf && systemctl daemon-reload")
    try:
        unkept = [cost_of_connections(machine) for _ in range(3)]
    finally:
        machine.run(f"rm -r {folder}; systemctl daemon-reload; systemctl restart sbus.service")
    with capsys.disabled():
        print(f"\nµs for each of 1000 connections with the store: {least(kept)}; without: {least(unkept)}")


def cost_of_connections(machine: Container) -> dict[str, float]:
    """Return the µs that each of 1,000 connections costs, by whom they are spent."""
    machine.run("systemctl restart sbus.service")
    said = machine.output(f"ulimit -n 8192; python3 /opt/programs/pace.py connects 1000 {pid_of(machine)}")
    return {str(what): float(number) for what, number in json.loads(said).items()}


def least(costs: list[dict[str, float]]) -> dict[str, float]:
    """Return the least of each cost: what the machine does besides only adds to it."""
    return {what: min(cost[what] for cost in costs) for what in costs[0]}
