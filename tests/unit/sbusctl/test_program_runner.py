"""A program for each request: its input, output, environment and limits; and the order of callers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sbus import Peer, Request, ServiceError
from sbus.protocol.credentials import remote_peer
from sbusctl.program_runner import FairSemaphore, ProgramRunner, environment, failure

CALLER = Peer(7, uid=61_999, gid=100, pid=42, key_bytes=b"!/cred/100/61999/42")
REQUEST = Request("greet", b"data\0", CALLER, "u", None)

ALICE, BOB, CAROL = 1, 2, 3


def run(*command: str, at_once: int = 1, seconds: float = 30.0) -> bytes:
    return asyncio.run(ProgramRunner(command, at_once, seconds).run(REQUEST))


@pytest.mark.slow
def test_standard_input_and_output() -> None:
    assert run("cat") == b"data\0"
    assert run("true") == b""


def test_the_environment_is_the_caller_by_the_buss_word() -> None:
    assert environment(REQUEST, {"PATH": "/bin", "SBUS_CALLER_UID": "0"}) == {
        "PATH": "/bin",
        "SBUS_COMMAND": "greet",
        "SBUS_CALLER_TWIN": "0",
        "SBUS_CALLER_ID": "7",
        "SBUS_CALLER_UID": "61999",
        "SBUS_CALLER_GID": "100",
        "SBUS_CALLER_PID": "42",
        "SBUS_CALLER_USER": "61999",
    }


def test_a_caller_of_another_host_has_no_user_in_the_environment() -> None:
    request = replace(REQUEST, caller=remote_peer(CALLER, 1002), source=1002)
    reported = environment(request, {"SBUS_CALLER_UID": "0", "SBUS_CALLER_USER": "root"})
    assert reported.pop("SBUS_CALLER_TWIN") == "1002"
    assert {name for name, value in reported.items() if value == ""} == {f"SBUS_CALLER_{name}" for name in ("UID", "GID", "PID", "USER")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "exit status 3"),
        ("echo one >&2; echo '  two' >&2; echo >&2; exit 1", "exit status 1: two"),
        ("kill -TERM $$", "killed by SIGTERM"),
        ("head -c 9000 /dev/zero >&2; echo last >&2; exit 1", "last"),
    ],
)
def test_how_it_failed(script: str, words: str) -> None:
    with pytest.raises(ServiceError) as caught:
        run("sh", "-c", script)
    assert str(caught.value).endswith(words) or str(caught.value) == words


def test_a_signal_without_a_name() -> None:
    assert failure(-99, b"") == "killed by signal 99"


@pytest.mark.slow
def test_it_cannot_be_started() -> None:
    with pytest.raises(ServiceError, match="cannot run the program"):
        run("/no/such/program")


@pytest.mark.slow
def test_its_time_is_bounded_and_its_children_go_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    begun, seconds = time.monotonic(), 0.5
    while not (mark.exists() and mark.read_text()):  # on a busy machine, the shell is killed before it has begun
        with pytest.raises(ServiceError, match=f"the program was killed: it ran longer than {re.escape(f'{seconds:g}')} s"):
            run("sh", "-c", f"sleep 600 & echo $! > {mark}; wait", seconds=seconds)
        seconds *= 2
    assert time.monotonic() - begun < 300
    child = int(mark.read_text())
    end = time.monotonic() + 30
    while _is_alive(child):
        assert time.monotonic() < end


@pytest.mark.slow
def test_its_output_is_bounded_and_unread_output_blocks_nothing() -> None:
    with pytest.raises(ServiceError, match="too large: the maximum is 307200 bytes"):
        run("sh", "-c", "head -c 307201 /dev/zero; head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; exec sleep 600")


@pytest.mark.slow
def test_its_output_is_bounded() -> None:
    with pytest.raises(ServiceError, match="too large: the maximum is 307200 bytes"):
        run("cat", "/dev/zero")


@pytest.mark.slow
def test_no_more_than_allowed_run_at_once() -> None:
    async def main() -> float:
        worker = ProgramRunner(
            [sys.executable, "-c", "import time; print(time.monotonic()); time.sleep(0.05); print(time.monotonic())"], 1, 60
        )
        times = [[float(each) for each in output.split()] for output in await asyncio.gather(*(worker.run(REQUEST) for _ in range(3)))]
        times.sort()
        return min(times[1][0] - times[0][1], times[2][0] - times[1][1])

    assert asyncio.run(main()) >= 0


@pytest.mark.slow
def test_when_it_is_cancelled_the_program_ends(tmp_path: Path) -> None:
    mark = tmp_path / "pid"

    async def main() -> None:
        task = asyncio.ensure_future(ProgramRunner(["sh", "-c", f"echo $$ > {mark}; sleep 600"], 1, 60).run(REQUEST))
        while not (mark.exists() and mark.read_text()):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert not _is_alive(int(mark.read_text()))


def _is_alive(pid: int) -> bool:
    """Return whether a process runs; an unreaped zombie does not."""
    try:
        os.kill(pid, signal.SIG_DFL)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_users_take_turns(tmp_path: Path) -> None:
    """With one program at once: of a caller with many calls the one that runs and the next are served, then the other's."""
    order = tmp_path / "order"
    other = replace(REQUEST, caller=Peer(8, uid=62_000, gid=100, pid=43, key_bytes=b"!/cred/100/62000/43"))

    async def serve() -> None:
        worker = ProgramRunner(["sh", "-c", f"echo $SBUS_CALLER_UID >> {order}"], 1, 30.0)
        await asyncio.gather(*(worker.run(REQUEST) for _ in range(6)), worker.run(other))

    asyncio.run(serve())
    assert order.read_text().split() == ["61999", "61999", "62000", *["61999"] * 4]


def test_an_expired_request_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(ServiceError, match="was not run: the call expired in the queue"):
        asyncio.run(ProgramRunner(["touch", str(mark)], 1, 30.0).run(replace(REQUEST, expires_at=time.time() - 1)))
    assert not mark.exists()


def _run_in_turn(asked: list[int], places: int = 1) -> list[int]:
    """Return in which order users were served who asked in the order of *asked*."""
    served: list[int] = []

    async def one(turns: FairSemaphore, uid: int) -> None:
        async with turns.place(uid):
            served.append(uid)
            await asyncio.sleep(0)

    async def run() -> None:
        turns = FairSemaphore(places)
        await asyncio.gather(*(one(turns, uid) for uid in asked))

    asyncio.run(run())
    return served


def test_a_caller_with_many_calls_does_not_delay_others() -> None:
    assert _run_in_turn([BOB] * 60 + [ALICE, CAROL]) == [BOB, BOB, ALICE, CAROL, *[BOB] * 58]


def test_they_take_turns() -> None:
    assert _run_in_turn([BOB, BOB, BOB, ALICE, ALICE]) == [BOB, BOB, ALICE, BOB, ALICE]
    assert sorted(_run_in_turn([BOB, ALICE] * 20, places=7)) == [ALICE] * 20 + [BOB] * 20


@pytest.mark.parametrize("is_late", [False, True])
def test_a_cancelled_call_frees_its_place(is_late: bool) -> None:
    """*is_late*: in the moment in which its turn has come."""

    async def run() -> None:
        turns, end = FairSemaphore(1), asyncio.Event()

        async def hold() -> None:
            async with turns.place(BOB):
                await end.wait()

        first, second = asyncio.ensure_future(hold()), asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        if is_late:
            end.set()
            await asyncio.sleep(0)
            assert first.done()
            assert not second.done()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        end.set()
        await first
        async with asyncio.timeout(30), turns.place(ALICE):
            pass

    asyncio.run(run())


def test_a_failure_gives_the_place_back() -> None:
    async def run() -> None:
        turns = FairSemaphore(1)
        with pytest.raises(ZeroDivisionError):
            async with turns.place(BOB):
                raise ZeroDivisionError
        async with asyncio.timeout(30), turns.place(ALICE):
            pass

    asyncio.run(run())
