"""``make bench-machine``: what restarts, starts and connections of the system's bus cost under a systemd of its own (as root)."""

from __future__ import annotations

import json

from tests.support.container import Container
from tests.support.packages import debian_packages
from tests.system.conftest import BUS, boot
from tests.system.numbered_clients import numbered_clients

RESTARTS = 5
ROUNDS = 3
CONNECTIONS = 1_000
_DROP_IN = "/etc/systemd/system/sbus.service.d"
_WITHOUT_STORE = "[Service]\nFileDescriptorStoreMax=0\n"


def pauses(machine: Container, connections: int) -> list[float]:
    """Return the longest silences, in seconds, that clients among *connections* notice during restarts, sorted."""
    found = []
    with numbered_clients(machine, user=None, options=f"--listeners {connections - 10}") as clients:
        for _ in range(RESTARTS):
            clients.wait_for_messages()
            clients.ask("mark")
            machine.run("systemctl reset-failed sbus.service; systemctl restart sbus.service")
            found.append(clients.wait_for_messages().longest_silence)
        clients.end().assert_nothing_happened()
    return sorted(found)


def cost_of_connections(machine: Container) -> dict[str, float]:
    """Return the µs that each of many connections costs, by whom they are spent: the least of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        machine.run("systemctl reset-failed sbus.service; systemctl restart sbus.service")
        pid = machine.output("systemctl show --property=MainPID --value sbus.service")
        rounds.append(json.loads(machine.output(f"ulimit -n 8192; python3 /opt/programs/pace.py connects {CONNECTIONS} {pid}")))
    return {what: min(each[what] for each in rounds) for what in rounds[0]}


def main() -> None:
    """Measure and print."""
    machine = boot(debian_packages(), installed=BUS)
    try:
        machine.run("sbusctl whoami")
        for connections in (10, CONNECTIONS):
            shown = ", ".join(f"{pause * 1000:.0f}" for pause in pauses(machine, connections))
            print(f"pause of a restart with {connections} connections: {shown} ms")
        started = machine.output(f"python3 /opt/programs/pace.py activation {RESTARTS}")
        print(f"from the connect that starts the bus to its first answer: {started} s")
        kept = cost_of_connections(machine)
        machine.run(f"mkdir {_DROP_IN} && cat >{_DROP_IN}/store.conf && systemctl daemon-reload", stdin=_WITHOUT_STORE)
        print(f"µs for each of {CONNECTIONS} connections with the descriptor store: {kept}; without: {cost_of_connections(machine)}")
    finally:
        machine.stop()


if __name__ == "__main__":
    main()
