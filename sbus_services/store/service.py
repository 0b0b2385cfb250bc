"""The store: its file, its connections to the bus, and what it does until it is stopped. Spec: sbus-store(8)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol

from sbus.errors import Closed, RemoteRefusal, SbusError, is_default, systemctl
from sbus.protocol import controls
from sbus_programs.backoff import Attempts
from sbus_programs.config.store import StoreSettings
from sbus_programs.config.users import ChargedUsers, SubordinateIds
from sbus_programs.systemd.event_loop import first_defect
from sbus_services.store.access import Access, VouchRight
from sbus_services.store.bus_connections import ServingBus
from sbus_services.store.calls.calls import Calls
from sbus_services.store.calls.remote_calls import RemoteCalls, RemoteService
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.committer import Committer
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import DeadLetter, EngineError, NewMessage, Taken
from sbus_services.store.new_subscribers import NewSubscribers
from sbus_services.store.operation_queue import SERVICE, OperationQueue
from sbus_services.store.ordinary_messages import CHANGED, NOT_CONNECTED, NOT_RUNNING, StreamIntake
from sbus_services.store.publications import Routes, StorePublisher
from sbus_services.store.status import FRESH_SECONDS, Status
from sbus_services.store.subscribed_workers import SubscribedWorkers
from sbus_services.store.sweeper import Sweeper

READ_AHEAD = 256
"""Messages of subscribed workers that are read before they are handled. The others wait in the bus, where users take turns."""

TURN_SECONDS = 1.0
"""Interval of the sign of life."""

STOP_SECONDS = 20.0
"""How long the store waits for calls and commits when it stops."""


class StoreLog(Protocol):
    """What the store reports; the program writes it to its log."""

    def problem(self, words: str) -> None:
        """Report a problem."""

    def bus_available(self) -> None:
        """Report that calls are served."""

    def bus_unavailable(self, reason: str) -> None:
        """Report that the connection to the bus has ended, or cannot be made."""

    def dead_letter(self, letter: DeadLetter) -> None:
        """Report a job that will not be tried again."""


OpenFile = Callable[[StoreSettings, Callable[[str], None]], Engine]
"""Opens the file of the settings. The function gets lines for the log, in any thread. Raises EngineError."""


class StoreService:
    """One store. *open_file* opens its file, in another thread; *alive* gets the status for people once a second. *charged* says whose
    quotas a client takes."""

    def __init__(
        self, settings: StoreSettings, open_file: OpenFile, log: StoreLog, alive: Callable[[str], object], charged: ChargedUsers
    ) -> None:
        self._settings = settings
        self._open_file = open_file
        self._log = log
        self._alive = alive
        self._charged = charged
        self._charged_ids: SubordinateIds | None = None
        """Those that the file knows."""
        self._counts: Counter[str] = Counter()
        self._intakes: dict[str, asyncio.Task[None]] = {}
        self._bus: ServingBus | None = None
        self._calls_bus: ServingBus | None = None
        self._messages_bus: ServingBus | None = None
        self._interruption = NOT_RUNNING
        self._state = b"{}"
        self._state_at = 0.0

    async def open(self) -> None:
        """Open the file. Raises EngineError."""
        loop = asyncio.get_running_loop()

        def report(words: str) -> None:
            loop.call_soon_threadsafe(self._log.problem, words)

        self._engine = await loop.run_in_executor(None, self._open_file, self._settings, report)
        if (refusal := self._engine.run_start.refusal) is not None:
            self._log.problem(f"all changes are refused until there is room: {refusal.reason}")
        self._committer = Committer(self._engine)
        self._operations: OperationQueue[Engine] = OperationQueue(self._committer, self._charged)
        self._publisher = StorePublisher(self._counts, self._log.problem)
        self._dead_letters = StorePublisher(self._counts, self._log.problem)
        self._sweeper = Sweeper(self._dead_letters, self._log.dead_letter, self._log.problem)
        access, vouch_right = Access(self._ask, self._log.problem, self._charged), VouchRight(self._ask, self._log.problem)
        self._context = StoreContext(
            self._operations,
            access,
            vouch_right,
            routes=Routes(self._settings),
            publisher=self._publisher,
            report=self._log.problem,
            counts=self._counts,
            clock=self._engine.clock,
            run=lambda: self._engine.run,
            schedule_sweep=self._sweeper.schedule,
            charged=self._charged,
        )
        self._status = Status(self._counts, self._context.refusals)
        self._calls = Calls(self._context, self.state)
        self._remote = RemoteService(RemoteCalls(self._context, self._calls), self._log.problem)
        self._subscribers = NewSubscribers(self._context, self._counts, self._log.problem, self._settled)
        self._workers = SubscribedWorkers(self._context, self._calls.jobs, self._log.problem)
        self._context.on_stored = self._subscribers.changed
        self._sources: dict[str, StreamIntake] = {}
        await self._charge()

    async def run(self, ready: Callable[[], None]) -> None:
        """Work until cancelled; *ready* is called when the store serves calls, or the bus is not available. A defect ends it."""
        failed = first_defect()
        self._remote.configure(self._settings)
        tasks = [
            asyncio.ensure_future(self._connections(ready)),
            asyncio.ensure_future(self._sweeper.run(self._context)),
            asyncio.ensure_future(self._turns()),
        ]
        is_stopped = False
        try:
            done, _ = await asyncio.wait([*tasks, failed], return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        except asyncio.CancelledError:
            is_stopped = True
            raise
        finally:
            await self._stop(tasks, is_stopped=is_stopped)

    async def reload(self, settings: StoreSettings) -> None:
        """Apply other settings. Raises EngineError; then the former ones hold."""
        if (settings.file, settings.bus) != (self._settings.file, self._settings.bus):
            bus = self._settings.bus
            command = f": {systemctl(bus)} restart sbus-store" if is_default(bus) else ""
            raise EngineError("EINVAL", f"file and bus cannot change while the store runs; restart it{command}")
        await self._operations.run(SERVICE, lambda engine: engine.configure(settings))
        former, self._settings = self._settings, settings
        self._context.reconfigure(Routes(settings))
        self._remote.configure(settings)
        self._calls.admin.forget_figures()
        for stream in former.streams:
            now = settings.stream(stream.name)
            if now is None or now.patterns != stream.patterns:
                await _cancelled(self._intakes.pop(stream.name, None))
                self._sources.pop(stream.name, None)
        if self._messages_bus is not None:
            self._begin_intakes(self._messages_bus, CHANGED, lambda: None)

    async def state(self) -> bytes:
        """Return the state as JSON."""
        now = asyncio.get_running_loop().time()
        if now >= self._state_at:
            self._state_at = now + FRESH_SECONDS
            waiting = {
                "waiting_reads": len(self._context.news),
                "waiting_takes": sum(map(len, self._context.lines.values())),
                "workers": len(self._context.workers),
                "subscribed_workers": len(self._workers),
                "waiting_operations": len(self._operations),
            }
            self._state = self._status.state(await self._calls.admin.figures(), waiting)
        return self._state

    # The bus

    async def _connections(self, ready: Callable[[], None]) -> None:
        """Serve, and connect again whenever a connection ends."""
        async for _ in Attempts():
            reason = "it closed the connection"
            try:
                await self._connected(ready)
            except (SbusError, OSError) as error:
                reason = str(error)
            if self._context.is_stopping:
                return
            self._log.bus_unavailable(reason)
            ready()

    async def _connected(self, ready: Callable[[], None]) -> None:
        """Serve until a connection ends. Raises SbusError, OSError."""
        address = self._settings.bus or None
        context = self._context
        serving: asyncio.Task[None] | None = None
        ended: asyncio.Task[None] | None = None
        subscribers: asyncio.Task[None] | None = None
        workers: asyncio.Task[None] | None = None
        async with AsyncExitStack() as stack:
            control = await stack.enter_async_context(ServingBus.connect(address, name="sbus-store control"))
            messages = await stack.enter_async_context(ServingBus.connect(address, name="sbus-store messages"))
            calls = await stack.enter_async_context(ServingBus.connect(address, name="sbus-store calls"))
            jobs = await stack.enter_async_context(ServingBus.connect(address, name="sbus-store workers", queue_packets=READ_AHEAD))
            self._bus, self._calls_bus, self._messages_bus = control, calls, messages
            for each in (control, messages, calls, jobs):
                each.on_refused = self._refused
            context.access.forget()
            context.vouch_right.forget()
            if any(stream.publish for stream in self._settings.streams):
                await context.vouch_right.problem()  # logs it
            try:
                holders = await self._operations.run(SERVICE, lambda engine: engine.lease_holders())
                await context.workers.connected(control, holders)
                await messages.tell(controls.SENDER_ON)
                await jobs.tell(controls.SENDER_ON)
                await jobs.tell(controls.ORDER_FAIR)
                await messages.tell(controls.ECHO_OFF)  # what the store publishes is stored already
                self._publisher.connected(messages)
                self._dead_letters.connected(calls)
                context.publications.connected()
                self._sweeper.connected()
                own = {int((await each.address).split("/")[2]) for each in (control, messages, calls, jobs)}
                subscribers = asyncio.ensure_future(self._subscribers.run(messages, own))
                await self._subscribed(messages)
                workers = asyncio.ensure_future(self._workers.run(jobs, control))
                self._calls.serve_on(calls)
                ended = asyncio.ensure_future(_ended(control))
                serving = asyncio.ensure_future(calls.serve_all(self._charged.of, lambda: self._on_serving(ready)))
                await asyncio.wait([serving, ended, workers], return_when=asyncio.FIRST_COMPLETED)
                for task in (serving, workers, *self._intakes.values()):
                    if task.done() and not task.cancelled():
                        task.result()
            finally:
                self._bus = self._calls_bus = self._messages_bus = None
                self._interruption = NOT_CONNECTED
                self._publisher.disconnected()
                self._dead_letters.disconnected()
                await context.publications.disconnected()
                intakes, self._intakes = self._intakes, {}
                self._sources.clear()
                for each_task in (*intakes.values(), subscribers, workers, serving, ended):
                    await _cancelled(each_task)
                await context.workers.disconnected()

    def _on_serving(self, ready: Callable[[], None]) -> None:
        """Note that calls are served."""
        self._log.bus_available()
        ready()

    async def _subscribed(self, bus: ServingBus) -> None:
        """Begin to store ordinary messages, and return when the bus has all subscriptions. Raises SbusError, OSError."""
        missing = len(self._settings.streams)
        all_ready = asyncio.Event()

        def ready() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                all_ready.set()

        self._begin_intakes(bus, self._interruption, ready)
        if missing:
            waiting = asyncio.ensure_future(all_ready.wait())
            try:
                await asyncio.wait([waiting, *self._intakes.values()], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            for task in self._intakes.values():
                if task.done():
                    task.result()

    def _begin_intakes(self, bus: ServingBus, interruption: str, ready: Callable[[], None]) -> None:
        """Begin to store the messages of streams for which that has not begun."""
        for stream in self._settings.streams:
            if stream.name not in self._intakes:
                intake = StreamIntake(stream, self._operations, self._counts, self._log.problem, self._on_stored)
                self._sources[stream.name] = intake
                task = self._intakes[stream.name] = asyncio.ensure_future(intake.run(bus, interruption, ready))
                task.add_done_callback(self._intake_ended)

    def _intake_ended(self, task: asyncio.Task[None]) -> None:
        """End the other connections too if that for messages has ended. A cancelled task belongs to a stream that has changed."""
        if not task.cancelled() and self._bus is not None:
            self._closing = asyncio.ensure_future(self._bus.close())

    async def _settled(self) -> None:
        """Return when all ordinary messages that were received are committed."""
        for intake in list(self._sources.values()):
            if not self._intakes[intake.stream.name].done():
                await intake.settled()

    async def _ask(self, key: bytes, payload: bytes) -> bytes:
        """Send a request to the bus, and return the response. Raises SbusError."""
        if self._bus is None:
            raise Closed("the bus")
        return await self._bus.control(key, payload)

    # Events

    def _refused(self, refusal: RemoteRefusal) -> None:
        """Note that the bus refused a message of the store: no subscriber gets it, and it is not published again."""
        self._counts["publications_refused"] += 1
        self._log.problem(f"the bus refused what the store publishes: {refusal}")

    def _on_stored(self, stream: str, messages: Sequence[NewMessage]) -> None:
        """Note that ordinary messages were committed."""
        self._context.stored(stream, [message.key for message in messages])

    async def _turns(self) -> None:
        """Report once a second that the store is alive, and publish its state."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            with contextlib.suppress(EngineError):  # of the disk: again in a second
                await self._charge()
            figures = await self._calls.admin.figures()
            messages = sum(each.messages for each in figures.streams)
            self._alive(f"messages: {messages}, jobs with workers: {sum(each.leased for each in figures.queues)}")
            if self._calls_bus is not None and loop.time() >= due:
                due = loop.time() + self._settings.state_interval
                with contextlib.suppress(SbusError, OSError):
                    await self._calls_bus.publish("store/state", await self.state())
            await asyncio.sleep(TURN_SECONDS)

    async def _charge(self) -> None:
        """Let the file charge other users if subuid(5) has changed."""
        ids = self._charged.ids
        if ids is not self._charged_ids:
            await self._operations.run(SERVICE, lambda engine: engine.charge(ids))
            self._charged_ids = ids

    # The end

    async def _stop(self, tasks: Sequence[asyncio.Task[None]], *, is_stopped: bool) -> None:
        """Answer the calls that wait, commit the operations that were accepted, and close the file; *is_stopped*: not for a fault."""
        connections, *others = tasks
        self._context.stop()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                if self._calls_bus is not None:
                    await self._calls_bus.respond_to_all()
                await self._remote.respond_to_all()
                for task in (*others, *self._intakes.values()):
                    await _cancelled(task)
                await self._publisher.taken()
                await self._dead_letters.taken()
                await self._operations.drained()
                await self._operations.run(SERVICE, partial(_note_end, self._context.published.new(), is_stopped))
                self._operations.close()
                await self._operations.drained()
                if self._calls_bus is not None:
                    await self._calls_bus.flush()
        except (TimeoutError, SbusError, OSError) as error:
            self._log.problem(f"not everything was answered before the end: {str(error) or 'it took too long'}")
        finally:
            await self._remote.close()
            await _cancelled(connections)
            await asyncio.get_running_loop().run_in_executor(None, self._committer.close)
            self._engine.close()


def _note_end(taken: Taken, is_stopped: bool, engine: Engine) -> None:
    """Note in the file what the bus has taken, and whether the store was stopped."""
    engine.note_taken(taken)
    if is_stopped:
        engine.run_start.note_stop()


async def _ended(bus: ServingBus) -> None:
    """Return when the connection of *bus* has ended."""
    with contextlib.suppress(SbusError, OSError):
        async with bus.subscribe(b"store/no-such-key") as nothing:
            while True:
                await nothing.receive()


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    """Cancel *task*, and wait for its end."""
    if task is None:
        return
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
