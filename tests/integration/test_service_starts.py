"""Calls that start services through sbus-trigger, on a real bus, with users who may and may not, and with hostile ones."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sbus import AsyncBus, Bus, CallTimeout, NoRecipient, RemoteError, Request
from tests.support import skips
from tests.support.c_programs import Actor, client_program
from tests.support.daemons import Daemon, StartDaemon
from tests.support.minibus import WAIT_SECONDS
from tests.support.relays import wait_for
from tests.support.service_processes import running_service
from tests.support.trigger_programs import TriggerProgram
from tests.support.users import FIRST, SECOND, User
from tools.stage import ROOT

RULE = f"""
[[on]]
keys = "rpc/backup"
when = "no-service"
from = ["root", {FIRST.uid}]
start = "backup.service"
service_timeout = "60s"
burst = {{ count = 3, interval = "1h" }}
"""

BROKEN = RULE.replace("backup.service", "broken.service")

pytestmark = pytest.mark.usefixtures("needs_root")


SHARES_BUS = True


def echo(request: Request) -> bytes:
    return b"%d %d: %b" % (request.caller.uid, request.caller.pid, request.data)


def called(user: User, address: str, timeout: float | None = WAIT_SECONDS, command: str = "backup") -> str:
    """Call as *user*, and return the response, or the error."""

    def call() -> str:
        with Bus.connect(address) as bus:
            try:
                return bus.call(command, b"data", timeout=timeout).decode()
            except (NoRecipient, RemoteError, CallTimeout) as error:
                return f"{type(error).__name__}: {error}"

    return user.call(call, timeout_seconds=2 * WAIT_SECONDS)


class Unit:
    """Acts as the service manager's unit: it serves *commands* when systemctl has been called."""

    def __init__(self, trigger: TriggerProgram, **commands: Any) -> None:
        self._trigger = trigger
        self._commands = commands
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Unit:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        wait_for(lambda: self._ended.is_set() or bool(self._trigger.calls), "the start of the unit")
        with ExitStack() as stack:
            stack.enter_context(running_service(self._trigger.bus, **self._commands))
            self._ended.wait()


def test_a_call_starts_the_unit_and_its_service_gets_the_call_from_its_caller(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, RULE) as trigger, Unit(trigger, backup=echo):
        said = called(FIRST, bus.path)
        assert said.startswith(f"{FIRST.uid} ")
        assert said.endswith(": data")
        assert trigger.calls == [["start", "backup.service"]]
        trigger.wait_for_counts(messages=1, accepted=1, actions=1, succeeded=1)
        # A user who may not start it may still call the service that runs.
        assert called(SECOND, bus.path).startswith(f"{SECOND.uid} ")
        assert called(FIRST, bus.path).startswith(f"{FIRST.uid} ")
        trigger.wait_for_counts(messages=1)


def test_calls_that_wait_share_one_start(bus: Daemon, tmp_path: Path) -> None:
    async def calls() -> list[bytes]:
        async with AsyncBus.connect(bus.path) as client:
            return list(await asyncio.gather(*(client.call("backup", b"%d" % number, timeout=WAIT_SECONDS) for number in range(100))))

    with TriggerProgram(tmp_path, bus.path, RULE) as trigger, Unit(trigger, backup=echo):
        trigger.hold.touch()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(asyncio.run, calls())
            trigger.wait_for_counts(messages=100, coalesced=99, accepted=1)
            trigger.hold.unlink()
            assert [answer.split(b": ")[1] for answer in waiting.result()] == [b"%d" % number for number in range(100)]
        assert trigger.calls == [["start", "backup.service"]]


def test_a_stream_starts_the_unit_too(bus: Daemon, tmp_path: Path) -> None:
    def parts(_request: Request) -> object:
        yield b"1"
        yield b"2"

    with TriggerProgram(tmp_path, bus.path, RULE) as trigger, Unit(trigger, backup=parts), Bus.connect(bus.path) as client:
        assert [bytes(part) for part in client.stream("backup", b"x", timeout=WAIT_SECONDS)] == [b"1", b"2"]


def test_a_unit_that_fails_is_an_error_at_once_that_names_it(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, BROKEN) as trigger:
        # Without a timeout: nothing else would end the call.
        said = called(FIRST, bus.path, timeout=None)
        assert said == "NoRecipient: no service for 'backup': cannot start broken.service: Unit broken.service not found."
        trigger.wait_for_counts(failed=1)


@pytest.mark.parametrize(("state", "result"), [("failed", "exit-code"), ("inactive", "success")])
def test_a_unit_that_ends_without_a_service(bus: Daemon, tmp_path: Path, state: str, result: str) -> None:
    (tmp_path / "states").mkdir()
    (tmp_path / "states/backup.service").write_text(f"ActiveState={state}\nResult={result}\n")
    with TriggerProgram(tmp_path, bus.path, RULE):
        said = called(FIRST, bus.path, timeout=None)
        words = f"backup.service has ended without a service of 'backup': its result is {result}"
        assert said == f"NoRecipient: no service for 'backup': {words}"


def test_a_unit_that_never_serves_is_an_error_after_its_timeout(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, RULE.replace("60s", "1s")):
        said = called(FIRST, bus.path, timeout=None)
        assert said == "NoRecipient: no service for 'backup': backup.service is active, but has no service of 'backup' after 1 s"


def test_the_timeout_of_the_caller_includes_the_start(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, RULE) as trigger:
        trigger.hold.touch()
        assert called(FIRST, bus.path, timeout=5.0).startswith("CallTimeout: ")
        wait_for(lambda: trigger.calls == [["start", "backup.service"]], "the start of the unit")


def test_users_who_may_not_and_users_who_call_too_often(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, BROKEN) as trigger:
        said = called(SECOND, bus.path, timeout=None)
        assert said == f"NoRecipient: no service for 'backup': user {SECOND.uid} may not start broken.service"
        assert trigger.calls == []
        for _ in range(3):
            assert "Unit broken.service not found" in called(FIRST, bus.path, timeout=None)
        assert f"user {FIRST.uid} has sent more than 3 in 3600 s" in called(FIRST, bus.path, timeout=None)
        trigger.wait_for_counts(messages=5, wrong_sender=1, accepted=3, over_burst=1)
        # The limit of one user does not concern another.
        with Bus.connect(bus.path) as root, pytest.raises(NoRecipient, match=r"Unit broken\.service not found"):
            root.call("backup", timeout=None)


def test_a_flood_of_one_user_does_not_keep_out_another(bus: Daemon, tmp_path: Path) -> None:
    refused, refuses = os.pipe()

    def flood() -> int:
        async def is_refused(client: AsyncBus) -> bool:
            try:
                await client.call("trigger/start/backup", timeout=WAIT_SECONDS)
            except RemoteError as error:
                if "busy" in error.words:
                    os.write(refuses, b"x")
                    return True
            except CallTimeout:
                pass
            return False

        async def calls() -> int:
            async with AsyncBus.connect(bus.path) as client:
                return sum(await asyncio.gather(*(is_refused(client) for _ in range(600))))

        return asyncio.run(calls())

    with TriggerProgram(tmp_path, bus.path, RULE) as trigger, Unit(trigger, backup=echo):
        trigger.hold.touch()
        with ThreadPoolExecutor() as pool:
            flooding = pool.submit(FIRST.call, flood, 2 * WAIT_SECONDS)
            wait_for(lambda: trigger.counts().get("messages", 0) >= 256, "the flood")
            with Bus.connect(bus.path) as root:
                waiting = pool.submit(root.call, "backup", b"data", timeout=WAIT_SECONDS)
                wait_for(lambda: trigger.counts()["messages"] + trigger.counts().get("busy", 0) >= 257, "the call of root")
                for _ in range(600 - 2 * 256):
                    os.read(refused, 1)
                trigger.hold.unlink()
                assert waiting.result().endswith(b": data")
            assert flooding.result() >= 600 - 2 * 256
        assert trigger.calls == [["start", "backup.service"]]
    os.close(refused)
    os.close(refuses)


def test_a_trigger_of_another_user_does_not_make_callers_wait(bus: Daemon, tmp_path: Path) -> None:
    def never(_request: Request) -> bytes:
        time.sleep(2 * WAIT_SECONDS)
        return b""

    forged: dict[str, Any] = {"trigger/start/backup": never}
    with running_service(bus.path, SECOND, **forged):
        assert called(FIRST, bus.path, timeout=None) == "NoRecipient: no service for 'backup'"
        # At the same time, that of root is found.
        with TriggerProgram(tmp_path, bus.path, RULE) as trigger, Unit(trigger, backup=echo):
            assert called(FIRST, bus.path).startswith(f"{FIRST.uid} ")


def test_a_listener_of_root_starts_nothing(bus: Daemon) -> None:
    with Bus.connect(bus.path) as root, root.subscribe(""):
        assert called(FIRST, bus.path, timeout=None) == "NoRecipient: no service for 'backup'"


def test_a_listener_of_another_user_does_not_count_as_a_service(bus: Daemon, tmp_path: Path) -> None:
    def listen() -> str:
        with Bus.connect(bus.path) as listener, listener.subscribe("rpc/backup"):
            return listener.call("backup", b"data", timeout=WAIT_SECONDS).decode()

    with TriggerProgram(tmp_path, bus.path, RULE) as trigger, Unit(trigger, backup=echo):
        assert FIRST.call(listen, timeout_seconds=2 * WAIT_SECONDS).endswith(": data")


def test_the_end_of_the_trigger_ends_calls_that_wait(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, RULE) as trigger:
        trigger.hold.touch()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(called, FIRST, bus.path, None)
            trigger.wait_for_counts(actions=1)
            assert trigger.process is not None
            trigger.process.kill()
            trigger.process.wait(WAIT_SECONDS)
            said = waiting.result()
        assert said == "NoRecipient: no service for 'backup': sbus-trigger has disconnected while it started a service"


def test_it_serves_again_after_a_restart_of_the_bus(folder: Path, daemon: StartDaemon, tmp_path: Path) -> None:
    address = folder / "current"
    before = daemon()
    address.symlink_to(before.path)
    with TriggerProgram(tmp_path, str(address), RULE) as trigger:
        before.stop()
        after = daemon()
        address.unlink()
        address.symlink_to(after.path)
        wait_for(lambda: _has_trigger(after.path), "the trigger")
        with Unit(trigger, backup=echo):
            assert called(FIRST, after.path).startswith(f"{FIRST.uid} ")


NODE = """
import { connect } from 'sbus';
const bus = await connect();
for (const call of [
  async () => (await bus.call('backup', 'data', { timeout: 60000 })).text(),
  async () => { for await (const part of bus.stream('backup', 'parts', { timeout: 60000 })) return part.text(); },
]) {
  await call().then((text) => console.log(text), (error) => console.log(`${error.name}: ${error.reason}`));
}
process.exit(0);
"""


def node_calls(bus: Daemon, folder: Path, stream: Path) -> list[str]:
    """Return what a program in Node writes about a call and a stream."""
    (folder / "node_modules").mkdir()
    (folder / "node_modules/sbus").symlink_to(ROOT / "clients/node")
    program = folder / "program.mjs"
    program.write_text(NODE)
    env = {**os.environ, "SBUS_STREAM_ADDRESS": str(stream)}
    return subprocess.run(["node", str(program)], env=env, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()


def test_a_program_in_node_starts_services(daemon: StartDaemon, folder: Path, tmp_path: Path) -> None:
    skips.require_program("node", "nodejs")
    bus = daemon("--stream-address", str(folder / "stream"))
    with TriggerProgram(tmp_path, bus.path, RULE) as trigger, Unit(trigger, backup=echo):
        first, second = node_calls(bus, folder, folder / "stream")
        assert first.endswith(": data")
        assert second.endswith(": parts")
        assert trigger.calls == [["start", "backup.service"]]


def test_a_program_in_node_gets_the_reason(daemon: StartDaemon, folder: Path, tmp_path: Path) -> None:
    skips.require_program("node", "nodejs")
    bus = daemon("--stream-address", str(folder / "stream"))
    with TriggerProgram(tmp_path, bus.path, BROKEN):
        reason = "NoRecipient: cannot start broken.service: Unit broken.service not found."
        assert node_calls(bus, folder, folder / "stream") == [reason, reason]


def test_a_program_in_node_asks_no_trigger_of_another_user(daemon: StartDaemon, folder: Path) -> None:
    skips.require_program("node", "nodejs")
    bus = daemon("--stream-address", str(folder / "stream"))
    forged: dict[str, Any] = {"trigger/start/backup": lambda _request: b""}
    with running_service(bus.path, SECOND, **forged):
        assert node_calls(bus, folder, folder / "stream") == ["NoRecipient: ", "NoRecipient: "]


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program in C."""
    return client_program("actor", tmp_path_factory.mktemp("c"))


def test_a_program_in_c_starts_services(bus: Daemon, tmp_path: Path, program: Path) -> None:
    caller = Actor(program, bus.path)
    with TriggerProgram(tmp_path, bus.path, RULE) as trigger, Unit(trigger, backup=lambda request: request.data):
        for size in (5, 70_000):
            assert caller.do("call", "backup", str(size), "60000").split("\t")[2:] == [str(size), "1"]
        assert trigger.calls == [["start", "backup.service"]]
    caller.close()


def test_a_program_in_c_gets_the_reason(bus: Daemon, tmp_path: Path, program: Path) -> None:
    no_service = f"error\t{errno.ENOENT}\t{bus.path}: call failed: no service for rpc/backup"
    caller = Actor(program, bus.path)
    assert caller.do("call", "backup", "1", "60000") == no_service
    # A trigger of another user would never respond.
    forged: dict[str, Any] = {"trigger/start/backup": lambda _request: time.sleep(2 * WAIT_SECONDS)}
    with running_service(bus.path, SECOND, **forged):
        assert caller.do("call", "backup", "1", "60000") == no_service
    with TriggerProgram(tmp_path, bus.path, BROKEN) as trigger:
        reason = "cannot start broken.service: Unit broken.service not found."
        assert caller.do("call", "backup", "1", "60000") == f"{no_service}: {reason}"
        trigger.hold.touch()
        assert caller.do("call", "backup", "1", "5000").startswith(f"error\t{errno.ETIMEDOUT}\t")
        caller.start("call", "backup", "1", "60000")
        trigger.wait_for_counts(coalesced=1)
        assert trigger.process is not None
        trigger.process.kill()
        trigger.process.wait(WAIT_SECONDS)
        assert caller.line() == f"{no_service}: sbus-trigger has disconnected while it started a service"
    caller.close()


def _has_trigger(address: str) -> bool:
    with Bus.connect(address) as bus:
        return bool(bus.members("rpc/trigger/start/backup"))
