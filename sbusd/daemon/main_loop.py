"""The main loop of a bus: turns of its switch, and the handling of signals between them. Spec: sbusd(8), SIGNALS and ``--stalls``."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from sbus.protocol import __version__
from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_programs.config.configuration import summary
from sbus_programs.systemd.service_manager import Heartbeat, ServiceManager
from sbus_programs.systemd.signals import Signals
from sbusd.broker import log_messages
from sbusd.broker.broker import Broker
from sbusd.broker.log import BusLog
from sbusd.daemon.daemonize import Daemonizer
from sbusd.daemon.listener import Listener
from sbusd.daemon.reload import Reloader
from sbusd.dataplane.contract import Switch
from sbusd.restart.handover import Handover, HandoverError, own_command
from sbusd.restart.inherited_state import InheritedState, ReexecState
from sbusd.restart.program_check import ProgramCheck

REST_FACTOR = 4
"""After a step of background work, the bus serves busy clients for this many times the duration of the step."""


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The resources that the bus process has outside itself."""

    listeners: tuple[Listener, ...]
    """The SEQPACKET socket, and the stream socket if there is one."""
    daemonizer: Daemonizer
    manager: ServiceManager


class MainLoop:
    """The main loop of one bus. Call :meth:`serve` once, and :meth:`close` at the end."""

    def __init__(
        self, broker: Broker, journal: BusLog, context: ProcessContext, reloader: Reloader, folder: str, *, meter: StallMeter
    ) -> None:
        """*folder* is the working directory at the start; *meter* measures the work between turns."""
        self._broker = broker
        self._journal = journal
        self._listeners = context.listeners
        self._daemonizer = context.daemonizer
        self._manager = context.manager
        self._reloader = reloader
        self._folder = folder
        self._check = ProgramCheck(broker.switch, own_command(), folder)
        self._meter = meter
        self._keeps_connections = False
        self._is_unsettled = False
        """Whether another turn must follow immediately."""
        self._rests_until = 0.0

    def serve(self, inherited: InheritedState) -> None:
        """Serve until a signal or the last client stops the bus. Raises SbusError if it cannot start."""
        switch = self._broker.switch
        with Signals(self._broker.stop) as signals:
            switch.watch(signals.fileno(), signals.drain)
            self._broker.start_threads()
            self._reloader.start_thread(switch)
            handover = Handover.begin(self._broker, self._journal, inherited, progress=self._manager.extend_timeout)
            for listener in self._listeners:
                switch.listen(listener.fileno())
                listener.listen()
            addresses = " and ".join(listener.address for listener in self._listeners)
            warning = self._warning()
            self._manager.ready(f"serving {addresses}{f'; {warning}' if warning else ''}")
            self._daemonizer.ready()
            self._journal.record(log_messages.STARTED, address=addresses, version=__version__)
            self._reloader.report_faults()
            heartbeat = Heartbeat(self._manager, self._broker.traffic, self._record_lost_notification, warning=self._warning)
            # Without this, each full garbage collection would scan all imported modules, which takes eight milliseconds.
            gc.freeze()
            while not self._broker.is_done:
                wait_ms = heartbeat.beat()
                self._meter.note("heartbeat")
                if self._is_unsettled or not self._broker.is_settled:
                    self._is_unsettled = False
                    self._work_after(switch.turn(0))
                    self._meter.note("state keeping and new rules")
                else:
                    # A settled status is correct until something happens; then the loop must return to update it.
                    (switch.turn if heartbeat.is_settled else switch.run)(wait_ms)
                self._handle_signals(signals, handover)
                self._meter.note("reload and restart")
            self._meter.rest()
            self._record_unless(self._manager.stopping())
            if not self._broker.is_for_good:
                self._remove_ended()
                self._keeps_connections = handover.save()
        self._journal.record(log_messages.STOPPED, reason=self._broker.end_reason)

    def close(self) -> None:
        """Close the bus, and its connections unless the next process takes them over."""
        self._check.close()
        self._broker.close(keeps_connections=self._keeps_connections)

    def _record_lost_notification(self) -> None:
        """Record that a notification could not be sent to the service manager."""
        self._journal.record(log_messages.SERVICE_MANAGER_UNREACHABLE)

    def _record_unless(self, is_sent: bool) -> None:
        """Record that a notification could not be sent, unless it *is_sent*."""
        if not is_sent:
            self._record_lost_notification()

    def _warning(self) -> str:
        """Return the text about configuration faults for the status."""
        return summary(self._reloader.faults)

    def _work_after(self, ready: int) -> None:
        """Do a step of background work after a turn that served *ready* descriptors.

        On a busy bus it takes a small part of the time, see REST_FACTOR.
        """
        began = time.monotonic()
        if ready and began < self._rests_until:
            return
        self._broker.settle()
        ended = time.monotonic()
        self._rests_until = ended + REST_FACTOR * (ended - began)

    def _handle_signals(self, signals: Signals, handover: Handover) -> None:
        """Do what signals have requested."""
        if signals.take_hangup():
            self._record_unless(self._manager.reloading())
            self._reloader.request()
        if self._reloader.finish():
            self._record_unless(self._manager.reloaded())
            # The next turn removes the connections that the reload has ended.
            self._is_unsettled = True
        if signals.take_handover():
            self._record_unless(self._manager.reloading())
            self._check.start()
        result = self._check.take_result()
        if result is not None:
            self._restart_in_place(handover, result)

    def _restart_in_place(self, handover: Handover, result: str) -> None:
        """Restart in place if the check of the new program has an empty *result*; otherwise record it and continue."""
        if result:
            self._cancel_restart(result)
            return
        self._remove_ended()
        try:
            handover.restart_in_place(self._reexec_state())
        except HandoverError as error:
            self._cancel_restart(str(error))

    def _reexec_state(self) -> ReexecState:
        """Return what a restart in place keeps of this process."""
        listener, *others = self._listeners
        state = ReexecState(listener.fileno(), listener.identity, self._daemonizer.is_background, self._daemonizer.pid_file, self._folder)
        for stream_listener in others:
            state = replace(state, stream_listener=stream_listener.fileno(), stream_listener_made=stream_listener.identity)
        return state

    def _cancel_restart(self, reason: str) -> None:
        """Continue without a restart, and record the *reason*."""
        self._journal.record(log_messages.HANDOVER_FAILED, reason=reason)
        self._record_unless(self._manager.reloaded())

    def _remove_ended(self) -> None:
        """Remove the connections that are about to end: only live ones are handed over."""
        if self._is_unsettled or not self._broker.is_settled:
            self._broker.switch.turn(0)
        self._broker.switch.take_down()


class StallFileError(SbusError, OSError):
    """The file cannot be opened; the text is one line. The program exits with status 1."""


class StallMeter(Protocol):
    """Measures the parts of the loop outside the switch."""

    def note(self, name: str) -> None:
        """Attribute the time since the last step to the cause *name*."""

    def rest(self) -> None:
        """End the measurement of this turn, because the loop has ended."""


class _NoMeter:
    """Measures nothing."""

    def note(self, name: str) -> None:
        """Ignore a step."""

    def rest(self) -> None:
        """Ignore the end."""


@contextmanager
def measure_stalls(path: Path | None, switch: Switch) -> Iterator[StallMeter]:
    """Measure *switch* until the block ends, and write its stalls to *path*; measure nothing if that is None.

    Raises:
        StallFileError: the file cannot be opened.
    """
    if path is None:
        yield _NoMeter()
        return
    # Imported here: a bus outside of tests does not need it.
    from sbusd.dataplane.switch import measure_turns  # noqa: PLC0415

    # Opened at once, so that an error still goes to the terminal.
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StallFileError(f"cannot open {printable(str(path))}: {error.strerror}") from None
    stalls = measure_turns(switch)
    with open(fd, "w", encoding="utf-8") as file:
        try:
            yield stalls
        finally:
            try:
                file.write(json.dumps(stalls.report(), indent=1) + "\n")
                file.flush()
            except OSError as error:
                sys.stderr.write(f"sbusd: cannot write {printable(str(path))}: {error.strerror}\n")
