"""One attack on one daemon: the victim undisturbed and under attack in turns, and the daemon's memory and counters after it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sbus.protocol import controls
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_programs.config.loading import load_daemon_settings
from sbus_programs.config.settings import DaemonSettings
from tests.attacks.attacker import Attackers
from tests.attacks.catalogue import Attack
from tests.attacks.hostile import stream_address
from tests.attacks.results import STALL, AttackResult, Round, Stall
from tests.attacks.victim import Victim
from tests.support.daemons import Daemon, start_daemon
from tests.support.directories import slow_directory
from tests.support.kernels import old_kernel
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient
from tools.stage import Stage

VICTIM, HOSTILE = FIRST, SECOND
CONNECTION_BYTES, SUBSCRIPTION_BYTES = 16 << 10, 1 << 10
"""What the daemon needs to keep books of each, at most: of a connection, of a pattern of 64 bytes."""
SETTLE_SECONDS = 240.0
"""When a daemon that still has the attackers' connections has leaked them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: how many rounds, and for how many seconds each time."""

    rounds: int
    seconds: float
    is_urgent: bool = False
    """Whether attackers are scheduled as the victim is: then what is measured is the scheduler too."""
    repeats: int = 0
    """How often an attack under which nothing is wrong but a long stall is made again, each time on a fresh daemon."""


FULL = Plan(3, 1.0, repeats=8)
QUICK = Plan(1, 0.1)
REPEAT = Plan(1, 0.25)
"""Short, so that the host interferes with few of them; an attack does in that time thousands of times what it does."""


class AttackRunner:
    """The place for attacks: a folder for the daemons, and which processor cores the daemon and its clients have."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder = folder
        self._plan = plan
        cores = sorted(os.sched_getaffinity(0))
        self._daemon_core = cores[0] if len(cores) > 1 else None
        self._client_core = cores[1] if len(cores) > 1 else None
        self._number = 0

    def run(self, attack: Attack) -> AttackResult:
        """Make one attack and judge it; whatever stops it is the verdict's problem.

        A stall that the attack causes comes with each daemon. One that a hypervisor causes, while a processor spins for what a
        suspended one holds, does not: no clock tells the two apart, so the daemon with the shortest of the longest stalls counts.
        """
        result = self._run_on_new_daemon(attack, self._plan)
        for _ in range(self._plan.repeats):
            if result.broken != (STALL,):
                break
            again = self._run_on_new_daemon(attack, REPEAT)
            if again.problem:
                return again
            if again.stall_seconds < result.stall_seconds:
                result = replace(result, stall=again.stall)
        return result

    def _run_on_new_daemon(self, attack: Attack, plan: Plan) -> AttackResult:
        """Make one attack on a daemon of its own."""
        self._number += 1
        config = self._folder / f"config{self._number}.toml"
        config.write_text(attack.config)
        stalls = self._folder / f"stalls{self._number}.json"
        with ExitStack() as ends:
            env = old_kernel(self._folder) if attack.has_old_kernel else {}
            if attack.has_slow_directory:
                env |= slow_directory(self._folder, config)
            if attack.keeps_state:
                env |= ends.enter_context(notified(self._folder, self._number))
            return self._measure_attack(attack, plan, config, stalls, self._start(config, stalls, env))

    def _measure_attack(self, attack: Attack, plan: Plan, config: Path, stalls: Path, bus: Daemon) -> AttackResult:
        """Make one attack on *bus*, end that, and judge it."""
        rounds: list[Round] = []
        problem = ""
        idle = memory_peak(bus)
        try:
            self._measure_rounds(bus, attack, plan, rounds)
        except (AssertionError, OSError) as error:
            problem = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else str(error)
        memory = memory_peak(bus) if bus.process.poll() is None else 0
        try:
            bus.check()
        except AssertionError as error:
            problem = problem or str(error)
        cap = idle + allowance(load_daemon_settings(config, required=True))
        return AttackResult(attack.name, tuple(rounds), memory, cap, longest_stall(stalls), attack.takes_a_share, problem)

    def _start(self, config: Path, stalls: Path, env: dict[str, str]) -> Daemon:
        """Start a daemon on a core of its own, which measures its stalls."""
        path = str(self._folder / f"bus{self._number}" / "socket")
        options = ("-C", str(config), "--stalls", str(stalls), "--stream-address", stream_address(path))
        stage = Stage(sys.executable, {})
        bus = start_daemon(self._folder, self._number, options, stage=stage, user=None, env=env)
        if self._daemon_core is not None:
            # All its threads: one that holds the interpreter's lock and has to wait for a client would hold up the loop.
            for thread in os.listdir(f"/proc/{bus.pid}/task"):
                with contextlib.suppress(ProcessLookupError):  # it has ended since
                    os.sched_setaffinity(int(thread), {self._daemon_core})
        return bus

    def _measure_rounds(self, bus: Daemon, attack: Attack, plan: Plan, rounds: list[Round]) -> None:
        """Measure as the plan says, adding to *rounds*."""
        owner, victim = bus.client(), Victim(bus, VICTIM)
        before = settle(owner, 3)
        cores = os.sched_getaffinity(0)
        if self._client_core is not None:
            os.sched_setaffinity(0, {self._client_core})
        gc.disable()
        try:
            victim.measure(plan.seconds / 4)  # warm
            for _ in range(plan.rounds):
                quiet = victim.measure(plan.seconds)
                attackers = Attackers(bus.path, attack.roles(), HOSTILE, self._client_core, is_urgent=plan.is_urgent)
                try:
                    if attack.probe is not None:
                        attack.probe(bus, VICTIM, attackers)
                    begun = attackers.acts
                    attacked = victim.measure(plan.seconds)
                    rounds.append(Round(quiet, attacked, attackers.acts - begun))
                finally:
                    attackers.stop()
                settle(owner, 3)
        finally:
            gc.enable()
            os.sched_setaffinity(0, cores)
        after = settle(owner, 3)
        assert after["subscriptions"] == before["subscriptions"], "subscriptions of the attackers are left behind"
        assert after["queued_packets"] == after["queued_bytes"] == 0, "packets for the attackers are left behind"
        parts = ("delivered_packets", "queued_packets", "lost_packets", "replaced_packets", "abandoned_packets")
        assert after["deliveries"] == sum(after[name] for name in parts), f"the counters do not balance: {after}"


def settle(owner: RawClient, connections: int) -> dict[str, int]:
    """Wait until the bus has *connections* connections, and return its counters."""
    deadline, pause = time.monotonic() + SETTLE_SECONDS, 0.005
    while True:
        counters: dict[str, int] = json.loads(owner.ask(controls.STATS))["counters"]
        if counters["connections"] == connections:
            return counters
        assert time.monotonic() < deadline, f"{counters['connections']} connections are left, not {connections}"
        time.sleep(pause)
        pause = min(1.0, pause * 2)  # the bus reads packets of a throttled user when it has nothing else to do


@contextmanager
def notified(folder: Path, number: int) -> Iterator[dict[str, str]]:
    """Yield the environment of a daemon whose descriptors are kept, so that it keeps its state; what it sends is thrown away."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / f"notify{number}"))
        reader = threading.Thread(target=_throw_away, args=(manager,))
        reader.start()
        try:
            yield {"NOTIFY_SOCKET": str(folder / f"notify{number}"), "FDSTORE": "16"}
        finally:
            manager.shutdown(socket.SHUT_RD)
            reader.join()


def _throw_away(manager: socket.socket) -> None:
    """Receive until the socket is shut down. Without room for descriptors the kernel drops them."""
    while manager.recv(4_096):
        pass


def longest_stall(file: Path) -> Stall | None:
    """Return the longest stall that a daemon has written to *file*; None if it was killed before it could."""
    text = file.read_text()
    if not text:
        return None
    longest = json.loads(text)["longest"]
    return Stall(longest["stall_us"] / 1e6, longest["cpu_us"] / 1e6, longest["cause"])


def memory_peak(bus: Daemon) -> int:
    """Return the daemon's greatest resident memory so far, in bytes. Source: proc_pid_status(5)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{bus.pid}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) << 10


def allowance(settings: DaemonSettings) -> int:
    """Return by how many bytes the daemon may grow for one hostile user under *settings*, what it needs to keep books included."""
    limits, quotas = settings.limits, settings.quotas
    queued = min(quotas.queued_bytes, limits.queued_memory)
    held = quotas.connections * CONNECTION_BYTES + quotas.subscriptions * SUBSCRIPTION_BYTES
    return limits.batch_packets * MAX_PACKET_BYTES + limits.cache_bytes + queued + held
