"""How long the loop did not wait for events: what counts as a stall, and to which cause it is charged."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbusd.dataplane.switch import Stalls, measure_turns
from tests.support.switch_harness import SwitchHarness
from tests.support.wire import message

BLOCKED_SECONDS = 0.02
QUEUED_NS = 5_000_000


def report_of(harness: SwitchHarness, work: Callable[[], None]) -> dict[str, Any]:
    """Return the stalls of a bus that does *work* once, in the callback of a watched descriptor."""
    stalls = measure_turns(harness.switch)
    inner, outer = os.pipe()

    def callback() -> None:
        os.read(inner, 1)
        work()

    try:
        harness.switch.watch(inner, callback)
        os.write(outer, b"x")
        harness.switch.turn(-1)
        harness.switch.turn(0)  # whose wait ends the stall
        harness.switch.unwatch(inner)
    finally:
        os.close(inner)
        os.close(outer)
    return stalls.report()


def test_time_in_which_the_loop_is_blocked_is_a_stall_and_no_processor_time(harness: SwitchHarness) -> None:
    longest = report_of(harness, lambda: time.sleep(BLOCKED_SECONDS))["longest"]
    assert longest["has_slept"]
    assert longest["stall_us"] >= BLOCKED_SECONDS * 1e6
    assert longest["cpu_us"] <= longest["wall_us"] - BLOCKED_SECONDS * 1e6 + 1
    assert abs(longest["wall_us"] - longest["run_queue_us"] - longest["stall_us"]) <= 1


def spin() -> None:
    while True:
        pass


def queued_ns() -> int:
    """Return how long this thread has waited for a processor in its life."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def test_time_of_other_threads_on_the_processor_is_not_a_stall(harness: SwitchHarness) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    rival = multiprocessing.get_context("fork").Process(target=spin, daemon=True)
    rival.start()

    def work_until_disturbed() -> None:
        before = queued_ns()
        while queued_ns() - before < QUEUED_NS:
            pass
        time.sleep(BLOCKED_SECONDS)  # so that this turn has the longest stall, however early it is disturbed

    try:
        report = report_of(harness, work_until_disturbed)
    finally:
        rival.kill()
        rival.join()
        os.sched_setaffinity(0, cores)
    assert report["sees_run_queue"]
    assert report["longest"]["run_queue_us"] >= QUEUED_NS // 1000
    assert report["longest"]["stall_us"] <= report["longest"]["wall_us"] - QUEUED_NS // 1000 + 1


def test_a_stall_without_sleep_is_time_on_the_processor(harness: SwitchHarness) -> None:
    def work() -> None:
        end = time.thread_time_ns() + QUEUED_NS
        while time.thread_time_ns() < end:
            pass

    longest = report_of(harness, work)["longest"]
    assert not longest["has_slept"]
    assert longest["stall_us"] <= longest["cpu_us"]
    assert longest["stall_us"] >= QUEUED_NS // 1000 - 1


def test_a_wait_for_events_is_not_a_stall(harness: SwitchHarness) -> None:
    stalls = measure_turns(harness.switch)
    harness.switch.turn(100)
    harness.switch.turn(0)
    report: dict[str, Any] = stalls.report()
    assert report["turns"] == 2
    assert report["longest"]["wall_us"] - report["longest"]["run_queue_us"] < 100_000


def test_no_stall_is_measured_before_the_first_wait() -> None:
    stalls = Stalls()
    stalls.note("settling")
    stalls.rest()
    assert stalls.report()["longest"] is None
    assert stalls.report()["causes"] == {}


def test_each_part_of_a_turn_is_charged_to_its_cause(harness: SwitchHarness) -> None:
    stalls = measure_turns(harness.switch)
    client = harness.connect()
    for packet in (b"SUB a", b"UNSUB a", b"CMSG !/bus/ping\0", b"CMSG order/stack", b"CMSG " + b"x" * 100, message(b"!/no"), message(b"a")):
        harness.send(client, packet)
    harness.run()
    harness.hang_up(client)
    harness.run()
    causes: dict[str, Any] = stalls.report()["causes"]  # type: ignore[assignment]
    for cause in ("SUB", "UNSUB", "CMSG !/bus/ping", "CMSG order/stack", "CMSG of an unknown name", "recording refusals"):
        assert causes[cause]["steps"] == 1, cause
    assert causes["ending a connection"]["steps"] == 1
    assert causes["messages"]["steps"] > 1


def test_the_main_cause_of_a_stall_is_named(harness: SwitchHarness) -> None:
    def block() -> None:
        time.sleep(BLOCKED_SECONDS)

    longest = report_of(harness, block)["longest"]
    expected = "callback report_of.<locals>.callback"
    assert longest["cause"] == expected
    assert next(iter(longest["parts_us"].items())) == (expected, longest["parts_us"][expected])
    assert longest["parts_us"][expected] >= BLOCKED_SECONDS * 1e6 - 1
