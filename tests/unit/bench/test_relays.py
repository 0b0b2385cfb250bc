"""The memory figures of a relay, the command line of the daemon, and the report of a relay that fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench.programs import BenchError
from tests.bench.relays import daemon_command, rollup_bytes, started

ROLLUP = """\
55d0c6a2b000-7ffd5a3f2000 ---p 00000000 00:00 0                          [rollup]
Rss:               10000 kB
Pss:                7000 kB
Private_Clean:        40 kB
Private_Dirty:      2000 kB
SwapPss:               2 kB
"""


def test_memory_is_summed_in_bytes() -> None:
    assert rollup_bytes(ROLLUP, ("Pss",)) == 7000 * 1024
    assert rollup_bytes(ROLLUP, ("Private_Clean", "Private_Dirty", "SwapPss")) == 2042 * 1024


def test_a_field_that_the_kernel_does_not_give_is_not_taken_for_zero() -> None:
    with pytest.raises(KeyError):
        rollup_bytes(ROLLUP, ("Private_Hugetlb",))


@pytest.mark.parametrize(("config", "extra"), [(None, []), (Path("/c.toml"), ["-C", "/c.toml"])])
def test_the_daemon_runs_in_the_foreground_at_its_path(config: Path | None, extra: list[str]) -> None:
    assert daemon_command(("sbusd",), Path("/b"), config) == ["sbusd", "-f", "-a", "/b", *extra]


@pytest.mark.slow
def test_a_relay_is_ready_when_it_closes_its_output_and_ends_with_the_block(tmp_path: Path) -> None:
    program = "import os, signal; os.close(1); signal.pause()"
    with started([sys.executable, "-c", program], tmp_path / "bus") as relay:
        assert relay.process.poll() is None
        assert relay.ready_ns > 0
        assert relay.proportional_bytes() >= relay.private_bytes() > 0
    assert relay.process.poll() is not None


@pytest.mark.slow
def test_a_relay_that_dies_is_reported_with_its_own_words(tmp_path: Path) -> None:
    program = "import sys; sys.exit('the path is in use')"
    with pytest.raises(BenchError, match="status 1: the path is in use"), started([sys.executable, "-c", program], tmp_path / "bus"):
        pytest.fail("a dead relay was measured")
