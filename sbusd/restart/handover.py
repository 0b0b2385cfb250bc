"""One bus after another: how a process leaves what it knows, and how the next one goes on. Spec: sbusd(8), RESTARTS.

::

    begin(…)            what was left is brought back; from now on every change is written down, where somebody keeps it
    leave()             at the end, if the service manager keeps it: all is written down
    start_anew()        in place: all is written down, and execve(2)

What was left and cannot be used is refused, recorded, and its connections are closed: never guessed at.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from sbusd.broker import log_messages
from sbusd.broker.broker import Broker
from sbusd.broker.durable_state import complete
from sbusd.broker.log import BusLog
from sbusd.dataplane import closer
from sbusd.protocol.errors import SbusError
from sbusd.restart import restore
from sbusd.restart.connection_store import ParkingLot, close_parked
from sbusd.restart.inherited_state import Heritage, InPlace, set_in_place, unset_in_place
from sbusd.restart.state_log import KeptChronicle
from sbusd.state import records
from sbusd.state.log_file import StateError, StateFile
from sbusd.state.records import State
from sbusd.systemd import fdstore
from sbusd.systemd.signals import HANDLED

MAX_TRIES = 3
"""Processes that may fail to restore a state before it is refused: else one that ends the bus would do so for ever."""

FLUSH_SECONDS = 0.2
"""How long a journal that hangs may hold up a start in place."""


class HandoverError(SbusError):
    """The bus cannot be handed over; its text is one line. The bus goes on as it is."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What was left and is in use again."""

    file: StateFile
    lot: ParkingLot
    outcome: restore.Restoration
    manner: str


class Handover:
    """The coming and going of one process's bus."""

    def __init__(self, broker: Broker, journal: BusLog, *, is_kept: bool) -> None:
        """*is_kept*: a service manager keeps descriptors for the next process."""
        self._broker = broker
        self._journal = journal
        self._is_kept = is_kept
        self._chronicle: KeptChronicle | None = None

    @classmethod
    def begin(cls, broker: Broker, journal: BusLog, heritage: Heritage, *, progress: Callable[[], None] = lambda: None) -> Handover:
        """Bring back what *heritage* has, and write down every change from now on, where that is kept. Call it before the first turn.

        *progress* is called for each connection that is brought back.

        Raises:
            StoreError: the service manager cannot be told what to keep.
        """
        handover = cls(broker, journal, is_kept=fdstore.is_there(os.environ))
        if heritage.in_place is not None:
            closer.resume(heritage.in_place.closing)
        found = None if heritage.is_empty else handover._take_over(heritage, progress)
        if found is None:
            if handover._is_kept:
                handover._keep()
            return handover
        if handover._is_kept:
            handover._follow(found.file, found.lot)
        else:
            found.file.close()
            found.lot.close()
        for step in found.outcome.then:
            step()
        journal.record(log_messages.RESTORED, manner=found.manner, connections=found.outcome.restored, gone=found.outcome.gone)
        return handover

    def leave(self) -> bool:
        """Write down all for the next process, and return whether that was possible: then keep the connections open. Between turns."""
        if self._chronicle is None:
            return False
        left = complete(self._broker.parts())
        try:
            self._chronicle.file.replace(records.image(left))
        except OSError:
            # What was written down before still holds, as after a kill; where it does not, connections would stay open for nobody.
            return self._chronicle.is_good
        self._record_handover(left)
        return True

    def start_anew(self, in_place: InPlace) -> None:
        """Start this process's program anew, with the bus as it is. Between turns, when none is about to end.

        Returns only if the bus was told to end a moment before, and by an error.

        *in_place* says all but the descriptors of state and lot.

        Raises:
            HandoverError: it cannot be; the bus goes on.
        """
        chronicle = self._chronicle or self._open()
        left = complete(self._broker.parts())
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            if self._broker.is_done:
                # A signal that came before they were held back: in the next program nobody would know of it.
                return
            if not chronicle.lot.park_all():
                raise HandoverError("the connections cannot be stored; raise LimitNOFILE=")
            chronicle.write_aside(records.image(left))
            self._record_handover(left)
            self._journal.flush(FLUSH_SECONDS)
            self._execute(chronicle, in_place)
        except OSError as error:
            raise HandoverError(f"{error.strerror}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            if self._chronicle is None:
                chronicle.lot.close()
                chronicle.file.close()
            else:
                chronicle.take_back()

    def _execute(self, chronicle: KeptChronicle, in_place: InPlace) -> None:
        """Replace this process by the same program. Raises OSError."""
        closing = tuple(closer.identified([*self._broker.switch.closing(), *closer.waiting()]))
        left = replace(in_place, state=chronicle.file.fd, lot=tuple(chronicle.lot.descriptors), closing=closing)
        set_in_place(os.environ, left)
        folder = os.getcwd()
        try:
            os.chdir(in_place.folder)
            os.execv(sys.executable, own_command())  # noqa: S606 - this program itself, without a shell
        finally:
            os.chdir(folder)
            unset_in_place(os.environ, left)

    def _record_handover(self, left: State) -> None:
        """Record what is handed over."""
        self._journal.record(log_messages.HANDED_OVER, connections=len(left.connections), packets=len(left.packets))

    def _live(self) -> Iterator[int]:
        """Iterate over the connections that are to outlive this process; some may come or go meanwhile."""
        roster, number = self._broker.parts().roster, 0
        while (client := roster.following(number)) is not None:
            number = client.connection
            yield client.fd

    def _open(self) -> KeptChronicle:
        """Return a chronicle that nobody reads yet. Raises HandoverError if there is no room for it."""
        try:
            file = StateFile.create()
            try:
                lot = ParkingLot.create(self._live)
            except OSError:
                file.close()
                raise
        except OSError as error:
            raise HandoverError(f"cannot create the state file: {error.strerror}") from None
        return KeptChronicle(file, lot, self._broker.parts)

    def _keep(self) -> None:
        """Begin to write down every change, for the service manager to keep. Raises StoreError."""
        try:
            chronicle = self._open()
        except HandoverError as error:
            self._journal.record(log_messages.STATE_UNKEPT, reason=str(error))
            return
        fdstore.put(chronicle.file.fd, chronicle.lot.descriptors)
        self._begin(chronicle)

    def _follow(self, file: StateFile, lot: ParkingLot) -> None:
        """Go on to write down every change where the process before has."""
        self._begin(KeptChronicle(file, lot, self._broker.parts))

    def _begin(self, chronicle: KeptChronicle) -> None:
        """Write down how things stand, and let the broker tell what changes."""
        chronicle.begin()
        self._chronicle = chronicle
        self._broker.set_chronicle(chronicle)

    def _take_over(self, heritage: Heritage, progress: Callable[[], None]) -> _Found | None:
        """Bring back what there is, or refuse it, record why, and close its connections."""
        try:
            return self._bring_back(heritage, progress)
        except StateError as error:
            closed = sum(close_parked(end) for end in heritage.lot)
            self._journal.record(log_messages.HANDOVER_REFUSED, reason=str(error), closed=closed)
            return None
        finally:
            # Duplicates are in use; these came with the process, and whoever else keeps them has them still.
            for fd in heritage.descriptors:
                with suppress(OSError):
                    os.close(fd)

    def _bring_back(self, heritage: Heritage, progress: Callable[[], None]) -> _Found:
        """Bring back what there is. Raises StateError, and has changed nothing, where that cannot be."""
        began = time.monotonic()
        with ExitStack() as on_error:
            file, left = _read(heritage.state)
            on_error.callback(file.close)
            try:
                lot = ParkingLot.adopt(list(heritage.lot), self._live)
                on_error.callback(lot.close)
                fds, is_cut = lot.look()
            except (OSError, ValueError) as error:
                raise StateError(f"its connections are missing: {error}") from None
            on_error.pop_all()
        if is_cut:
            self._journal.record(log_messages.CONNECTION_UNPARKED)
        outcome = restore.restore(self._broker.parts(), left, fds, progress)
        manner = "after a planned restart" if left.bus.is_orderly else "after a crash"
        return _Found(file, lot, outcome, f"{manner}, in {(time.monotonic() - began) * 1000:.0f} ms")


def own_command() -> list[str]:
    """Return the command line that starts this program again: the same interpreter, the same words."""
    return [sys.executable, *sys.orig_argv[1:]]


def _read(fd: int | None) -> tuple[StateFile, State]:
    """Return the state that was left, and note that it is tried. Raises StateError."""
    if fd is None:
        raise StateError("it is missing")
    try:
        file = StateFile.adopt(fd)
        left = records.replay(file.records())
        if left.tries >= MAX_TRIES:
            raise StateError(f"{left.tries} processes have failed to restore it")
        file.append(records.tried())
    except OSError as error:
        raise StateError(f"it cannot be read: {error.strerror}") from None
    return file, left
