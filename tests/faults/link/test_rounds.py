"""Three hosts, each with a bus, a link and a NATS server of one cluster: faults on some host, and every message accounted for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.link.cluster import Cluster
from tests.faults.link.rounds import FAULTS, Rounds
from tests.faults.link.traffic import Traffic
from tests.support.nats_servers import PROGRAMS, require_server
from tests.support.skips import require_namespaces, require_root

SEED = 16

BRIEF = {
    "cable pulled for a long time",
    "bad cable",
    "link stopped for a short time",
    "bus stopped for a long time",
    "link killed",
    "bus killed",
    "server killed",
}
"""Faults of each kind: short and long ones, with and without the end of a process or of a connection. ``make soak-link`` draws from all,
for minutes; tests/integration/link/test_nats_failures.py stops a server, tests/property/test_link_session.py has all silences, simulated.
"""


@pytest.mark.timeout(900)
def test_no_fault_loses_or_repeats_a_message_without_a_report(tmp_path: Path) -> None:
    """One after the other, because a host that was away must be whole again for the next fault."""
    require_root()
    require_namespaces()
    programs = [require_server(origin) for origin in sorted(PROGRAMS)]
    chosen = [fault for fault in FAULTS if fault.name in BRIEF]
    assert len(chosen) == len(BRIEF)
    with Cluster(programs, tmp_path) as cluster, Traffic(cluster) as traffic:
        rounds = Rounds(cluster, traffic, SEED)
        for fault in random.Random(SEED).sample(chosen, len(chosen)):
            rounds.run(fault)
        accounts = traffic.accounts
        assert accounts.lost > 0
        assert accounts.unknown > 0
        assert all(receiver.items for receiver in traffic.live_receivers())
