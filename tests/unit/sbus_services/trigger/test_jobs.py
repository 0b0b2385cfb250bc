"""Actions on units: one at a time for each unit, bounded for each user."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sbus_services.trigger import jobs
from sbus_services.trigger import jobs as jobs_module
from sbus_services.trigger.jobs import MAX_RUNNING, MAX_RUNNING_OF_USER, MAX_UNITS, MAX_UNITS_OF_USER, Done, RuleJobs, ServiceManagerCalls
from sbus_services.trigger.message_files import KEPT_SECONDS, MessageFiles
from sbus_services.trigger.rule_state import Firing, Sender
from tests.unit.sbus_services.trigger.rules import ALICE, BOB, rule


class Manager:
    """A service manager whose jobs end when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, bool]] = []
        self.going_on = asyncio.Event()

    async def run(self, action: str, unit: str, *, waits: bool = True) -> str:
        """Note the call."""
        self.calls.append((action, unit, waits))
        if waits:
            await self.going_on.wait()
        return "it is broken" if unit == "broken.service" else ""


def firing(unit: str = "x.service", payload: bytes = b"", uid: int = ALICE) -> Firing:
    """Return an action."""
    return Firing(rule(), unit, b"a/b", payload, Sender(uid, uid, 1, uid))


def run(folder: Path, test: Callable[[RuleJobs, Manager, Counter[str], list[Done]], Awaitable[None]]) -> None:
    """Run *test* with the actions of one rule."""

    async def main() -> None:
        manager, counts, done = Manager(), Counter[str](), list[Done]()
        files = MessageFiles(folder)
        files.open()
        await test(RuleJobs(manager, files, counts, done.append), manager, counts, done)

    asyncio.run(main())


async def settled(condition: Callable[[], bool]) -> None:
    """Wait for *condition*."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def test_messages_for_a_unit_that_runs_become_one_more_action(tmp_path: Path) -> None:
    async def test(jobs: RuleJobs, manager: Manager, counts: Counter[str], done: list[Done]) -> None:
        jobs.request(firing(payload=b"1"))
        await settled(lambda: len(manager.calls) == 1)
        assert jobs.request(firing(payload=b"2"))
        assert jobs.request(firing(payload=b"3"))
        manager.going_on.set()
        await settled(lambda: not len(jobs))
        assert [(each.firing.payload, each.messages, each.error) for each in done] == [(b"1", 1, ""), (b"3", 2, "")]
        assert (counts["coalesced"], counts["actions"], counts["succeeded"]) == (1, 2, 2)

    run(tmp_path, test)


def test_a_user_with_units_that_hang_does_not_block_another(tmp_path: Path) -> None:
    async def test(jobs: RuleJobs, manager: Manager, counts: Counter[str], done: list[Done]) -> None:
        accepted = [jobs.request(firing(f"{number}.service", uid=BOB)) for number in range(MAX_UNITS_OF_USER + 5)]
        assert (accepted.count(False), counts["overflow"]) == (5, 5)
        await settled(lambda: len(manager.calls) == MAX_RUNNING_OF_USER)
        assert jobs.request(firing("alice.service"))
        await settled(lambda: ("start", "alice.service", True) in manager.calls)
        assert len(manager.calls) <= MAX_RUNNING
        manager.going_on.set()
        await settled(lambda: not len(jobs))
        assert len(done) == MAX_UNITS_OF_USER + 1

    run(tmp_path, test)


def test_users_who_take_all_units_leave_one_to_each_other(tmp_path: Path) -> None:
    async def test(jobs: RuleJobs, manager: Manager, counts: Counter[str], done: list[Done]) -> None:
        for number in range(MAX_UNITS):
            assert jobs.request(firing(f"{number}.service", uid=BOB + 1 + number // MAX_UNITS_OF_USER))
        assert [jobs.request(firing(f"alice{number}.service")) for number in range(2)] == [True, False]
        assert jobs.request(firing("bob.service", uid=BOB))
        assert counts["overflow"] == 1
        manager.going_on.set()
        await settled(lambda: not len(jobs))
        assert len(done) == MAX_UNITS + 2

    run(tmp_path, test)


def test_the_end_requests_what_waits(tmp_path: Path) -> None:
    async def test(jobs: RuleJobs, manager: Manager, counts: Counter[str], done: list[Done]) -> None:
        jobs.request(firing(payload=b"1"))
        await settled(lambda: len(manager.calls) == 1)
        jobs.request(firing(payload=b"2"))
        for number in range(MAX_RUNNING_OF_USER):
            jobs.request(firing(f"{number}.service"))
        draining = asyncio.ensure_future(jobs.drain())
        await asyncio.sleep(0)
        manager.going_on.set()
        await draining
        units = {unit for _, unit, waits in manager.calls if not waits}
        assert "x.service" in units
        assert len(manager.calls) == 2 + MAX_RUNNING_OF_USER
        assert (counts["abandoned"], counts["unknown"]) == (0, 0)

    run(tmp_path, test)


def test_messages_whose_action_is_not_requested_in_time_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("GRACE_SECONDS", "DRAIN_SECONDS"):
        monkeypatch.setattr(jobs_module, limit, 0.0)

    async def test(jobs: RuleJobs, manager: Manager, counts: Counter[str], _: list[Done]) -> None:
        jobs.request(firing())
        await settled(lambda: len(manager.calls) == 1)
        for _number in range(2):
            jobs.request(firing())
        await jobs.drain()
        assert (counts["unknown"], counts["abandoned"], len(manager.calls)) == (1, 2, 1)

    run(tmp_path, test)


def test_failures_are_reported(tmp_path: Path) -> None:
    async def test(jobs: RuleJobs, manager: Manager, counts: Counter[str], done: list[Done]) -> None:
        manager.going_on.set()
        jobs.request(firing("broken.service"))
        await settled(lambda: bool(done))
        assert (done[0].error, counts["failed"]) == ("it is broken", 1)

    run(tmp_path, test)


def test_files_are_removed_a_while_after_their_action(tmp_path: Path) -> None:
    async def main() -> None:
        now = 0.0
        files, manager = MessageFiles(tmp_path, lambda: now), Manager()
        files.open()
        manager.going_on.set()
        jobs = RuleJobs(manager, files, Counter(), lambda _done: None)
        for unit in ("x.service", "broken.service"):
            jobs.request(firing(unit))
        await settled(lambda: not len(jobs))
        assert sorted(os.listdir(tmp_path)) == ["broken.service", "x.service"]
        now = KEPT_SECONDS
        files.sweep()
        assert os.listdir(tmp_path) == []

    asyncio.run(main())


pytestmark = pytest.mark.slow


def program(folder: Path, script: str) -> str:
    """Return the path of a program."""
    path = folder / "systemctl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_name_is_never_an_option(tmp_path: Path) -> None:
    made = program(tmp_path, f'printf "%s\\n" "$@" >{tmp_path}/words')
    assert asyncio.run(ServiceManagerCalls(is_user=True, program=made).run("reload", "--force", waits=False)) == ""
    words = (tmp_path / "words").read_text().split()
    assert words == ["--user", "--no-ask-password", "--no-pager", "--no-block", "reload-or-restart", "--", "--force"]


def test_an_error_is_one_bounded_printable_line(tmp_path: Path) -> None:
    made = program(tmp_path, "printf 'Job failed.\\n\\033[31mSee log.' >&2; head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1")
    error = asyncio.run(ServiceManagerCalls(program=made).run("start", "x.service"))
    assert error.startswith("Job failed. \\x1b[31mSee log.")
    assert len(error) < 400


def test_without_a_program_the_error_names_it(tmp_path: Path) -> None:
    assert asyncio.run(ServiceManagerCalls(program=program(tmp_path, "exit 3")).run("start", "x.service")).endswith("exited with status 3")
    missing = str(tmp_path / "missing")
    assert asyncio.run(ServiceManagerCalls(program=missing).run("start", "x")) == f"cannot run {missing}: No such file or directory"


def test_the_state_of_a_unit(tmp_path: Path) -> None:
    made = program(tmp_path, f'printf "%s\\n" "$@" >{tmp_path}/words; printf "Result=exit-code\\nActiveState=failed\\n"')
    assert asyncio.run(ServiceManagerCalls(program=made).state("--x.service")) == ("failed", "exit-code")
    assert (tmp_path / "words").read_text().split() == ["--no-pager", "show", "--property=ActiveState,Result", "--", "--x.service"]
    assert asyncio.run(ServiceManagerCalls(program=program(tmp_path, "exit 1")).state("x")) == ("unknown", "unknown")
    assert asyncio.run(ServiceManagerCalls(program=str(tmp_path / "missing")).state("x")) == ("unknown", "unknown")


def test_a_systemctl_that_hangs_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "STATE_SECONDS", 0.1)
    made = program(tmp_path, "exec sleep 600")
    assert asyncio.run(ServiceManagerCalls(program=made).state("x")) == ("unknown", "unknown")
