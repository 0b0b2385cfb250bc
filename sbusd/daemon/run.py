"""A bus at work: from the first turn of its switch to the last, between which signals are obeyed. Spec: sbusd(8), SIGNALS."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

import sbusd
from sbusd.broker import log_messages
from sbusd.broker.broker import Broker
from sbusd.broker.log import BusLog
from sbusd.config.faults import summary
from sbusd.daemon.daemonize import Presence
from sbusd.daemon.listener import Listener
from sbusd.daemon.reload import Reloader
from sbusd.daemon.stall_log import Meter
from sbusd.restart.handover import Handover, HandoverError, own_command
from sbusd.restart.inherited_state import Heritage, InPlace
from sbusd.restart.reexec import Successor
from sbusd.systemd.heartbeat import Heartbeat
from sbusd.systemd.service_manager import ServiceManager
from sbusd.systemd.signals import Signals

REST_FACTOR = 4
"""How many times as long as what takes steps has taken, it rests while clients are there to be served."""


@dataclass(frozen=True, slots=True)
class Surface:
    """What others see of a bus: its socket, its presence, its service manager."""

    listener: Listener
    presence: Presence
    manager: ServiceManager


class Run:
    """One bus, whose parts are all made. Call :meth:`serve` once, and :meth:`close` at the end."""

    def __init__(self, broker: Broker, journal: BusLog, surface: Surface, reloader: Reloader, folder: str, *, meter: Meter) -> None:
        """*folder* is where the bus was started; *meter* measures what the loop does between turns."""
        self._broker = broker
        self._journal = journal
        self._listener = surface.listener
        self._presence = surface.presence
        self._manager = surface.manager
        self._reloader = reloader
        self._folder = folder
        self._successor = Successor(broker.switch, own_command(), folder)
        self._meter = meter
        self._keeps_connections = False
        self._is_unsettled = False
        """Whether a turn must follow at once."""
        self._rests_until = 0.0

    def serve(self, heritage: Heritage) -> None:
        """Serve until a signal or the last client ends the bus. Raises SbusError if it cannot begin."""
        switch = self._broker.switch
        with Signals(self._broker.stop) as signals:
            switch.watch(signals.fileno(), signals.drain)
            handover = Handover.begin(self._broker, self._journal, heritage, progress=self._manager.extend_timeout)
            switch.listen(self._listener.fileno())
            self._listener.listen()
            warning = self._warning()
            self._manager.ready(f"serving {self._listener.address}{f'; {warning}' if warning else ''}")
            self._presence.ready()
            self._journal.record(log_messages.STARTED, address=self._listener.address, version=sbusd.__version__)
            self._reloader.report_faults()
            heartbeat = Heartbeat(self._manager, self._broker.traffic, self._record_deafness, warning=self._warning)
            # Else each full collection of garbage looks at all that was imported, for eight milliseconds.
            gc.freeze()
            while not self._broker.is_done:
                wait_ms = heartbeat.beat()
                self._meter.note("heartbeat")
                if self._is_unsettled or not self._broker.is_settled:
                    self._is_unsettled = False
                    self._settle_after(switch.turn(0))
                    self._meter.note("state keeping and new rules")
                else:
                    # What the service manager was told holds until something happens: it is then told anew in time.
                    (switch.turn if heartbeat.is_settled else switch.run)(wait_ms)
                self._obey(signals, handover)
                self._meter.note("reload and restart")
            self._meter.rest()
            self._manager.stopping()
            if not self._broker.is_for_good:
                self._settle()
                self._keeps_connections = handover.leave()
        self._journal.record(log_messages.STOPPED, reason=self._broker.end_reason)

    def close(self) -> None:
        """Close the bus; its connections, too, unless they are for the next process."""
        self._successor.close()
        self._broker.close(keeps_connections=self._keeps_connections)

    def _record_deafness(self) -> None:
        """Record that the service manager did not take a sign of life."""
        self._journal.record(log_messages.SERVICE_MANAGER_DEAF)

    def _warning(self) -> str:
        """Return what the status says of the configuration's faults."""
        return summary(self._reloader.faults)

    def _settle_after(self, ready: int) -> None:
        """Go on with what takes steps, after a turn in which *ready* descriptors were served.

        Where clients keep the bus busy, it takes a part of the time, not half of it.
        """
        began = time.monotonic()
        if ready and began < self._rests_until:
            return
        self._broker.settle()
        ended = time.monotonic()
        self._rests_until = ended + REST_FACTOR * (ended - began)

    def _obey(self, signals: Signals, handover: Handover) -> None:
        """Do what signals ask for, and what has come of it."""
        if signals.take_hangup():
            self._manager.reloading()
            self._reloader.reload()
            self._manager.reloaded()
            # So that a turn follows at once, at whose end those are buried whom the reload has ended.
            self._is_unsettled = True
        if signals.take_handover():
            self._manager.reloading()
            self._successor.examine()
        verdict = self._successor.take_verdict()
        if verdict is not None:
            self._give_place(handover, verdict)

    def _give_place(self, handover: Handover, verdict: str) -> None:
        """Start anew in place, if the program that is to come has no fault, *verdict*; else say so and go on."""
        if verdict:
            self._stay(verdict)
            return
        self._settle()
        try:
            handover.start_anew(
                InPlace(
                    self._listener.fileno(), self._listener.identity, self._presence.is_background, self._presence.pid_file, self._folder
                )
            )
        except HandoverError as error:
            self._stay(str(error))

    def _stay(self, reason: str) -> None:
        """Go on as before, and say why."""
        self._journal.record(log_messages.HANDOVER_FAILED, reason=reason)
        self._manager.reloaded()

    def _settle(self) -> None:
        """Bury those who are about to end: what is handed over is the living."""
        if self._is_unsettled or not self._broker.is_settled:
            self._broker.switch.turn(0)
        self._broker.switch.take_down()
