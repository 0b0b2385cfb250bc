"""The handover of the bus from one process to the next. Spec: sbusd(8), RESTARTS.

::

    begin(…)               restores the state of the previous process; if a service manager keeps the log, logs every change from now on
    save()                 at the end, writes the full state, if a service manager keeps the log
    restart_in_place(…)    writes the full state, and starts the new program with execve(2)

A state that cannot be restored is rejected and recorded, and its connections are closed. The bus never guesses.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from sbus.protocol.errors import SbusError
from sbus_programs.systemd import service_manager
from sbus_programs.systemd.signals import HANDLED
from sbusd.broker import log_messages
from sbusd.broker.broker import Broker
from sbusd.broker.durable_state import full_state
from sbusd.broker.log import BusLog
from sbusd.dataplane import socket_closer
from sbusd.restart import restore
from sbusd.restart.connection_store import ConnectionStore, close_stored
from sbusd.restart.inherited_state import InheritedState, ReexecState, set_reexec_state, unset_reexec_state
from sbusd.restart.state_log import StateLog
from sbusd.state import records
from sbusd.state.log_file import StateError, StateFile
from sbusd.state.records import State

MAX_TRIES = 3
"""Processes that may fail to restore a state before it is rejected: a state that crashes the bus must not do so endlessly."""

HOLD_SECONDS = 0.2
"""How long a close that blocks may delay a restart in place; a signal interrupts most of them after milliseconds."""

FLUSH_SECONDS = 0.2
"""How long a journal that hangs may delay a restart in place."""


class HandoverError(SbusError):
    """The bus cannot be handed over, and continues unchanged; the text is one line."""


@dataclass(frozen=True, slots=True)
class _Restored:
    """The state file and the connection store of the previous process, after the restore."""

    file: StateFile
    store: ConnectionStore
    outcome: restore.Restoration
    manner: str


class Handover:
    """The handover from the previous process to this one, and from this one to the next."""

    def __init__(self, broker: Broker, journal: BusLog, *, is_kept: bool) -> None:
        """*is_kept*: a service manager keeps descriptors for the next process."""
        self._broker = broker
        self._journal = journal
        self._is_kept = is_kept
        self._state_log: StateLog | None = None

    @classmethod
    def begin(cls, broker: Broker, journal: BusLog, inherited: InheritedState, *, progress: Callable[[], None] = lambda: None) -> Handover:
        """Restore the *inherited* state, and log every change from now on if a service manager keeps the log.

        Call it before the first turn. *progress* is called for each connection that is restored.

        Raises:
            StoreError: the descriptors cannot be stored in the service manager.
        """
        handover = cls(broker, journal, is_kept=service_manager.keeps_descriptors(os.environ))
        if inherited.reexec is not None:
            socket_closer.resume(inherited.reexec.closing)
        restored = None if inherited.is_empty else handover._restore_or_reject(inherited, progress)
        if restored is None:
            if handover._is_kept:
                handover._create_state_log()
            return handover
        if handover._is_kept:
            handover._begin(StateLog(restored.file, restored.store, broker))
        else:
            restored.file.close()
            restored.store.close()
        outcome = restored.outcome
        for step in outcome.then:
            step()
        journal.record(log_messages.RESTORED, manner=restored.manner, connections=outcome.restored, gone=outcome.gone)
        return handover

    def save(self) -> bool:
        """Write the full state for the next process, between turns, and return whether the connections must stay open for it."""
        if self._state_log is None:
            return False
        state = full_state(self._broker)
        try:
            self._state_log.file.replace(records.image(state))
        except OSError:
            # The change log is still valid, as after a crash. If it is not, no process could use the connections.
            return self._state_log.is_good
        self._record_handover(state)
        return True

    def restart_in_place(self, reexec: ReexecState) -> None:
        """Replace this process by a new start of its program, with the same bus. Between turns, when no client is about to end.

        Returns only if a signal stopped the bus a moment before. *reexec* has everything but the descriptors of the state.

        Raises:
            HandoverError: the restart failed; the bus continues.
        """
        with socket_closer.held(HOLD_SECONDS) as is_held:
            if not is_held:
                # execve(2) would wait until that thread ends, and no client would be served meanwhile.
                raise HandoverError("the close of a descriptor of a client does not return; end the file server that it waits for")
            self._restart_in_place(reexec)

    def _restart_in_place(self, reexec: ReexecState) -> None:
        """The same, while no thread closes a descriptor."""
        state_log = self._state_log or self._new_state_log()
        state = full_state(self._broker)
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            if self._broker.is_done:
                # A signal came just before they were blocked; the next program would not know of it.
                return
            if not state_log.store.rewrite():
                raise HandoverError(
                    "the connections cannot be stored; raise LimitNOFILE= of each bus of this user above twice the sum of their connections"
                )
            state_log.write_handover(records.image(state))
            self._record_handover(state)
            self._journal.flush(FLUSH_SECONDS)
            self._execute(state_log, reexec)
        except OSError as error:
            raise HandoverError(f"{error.strerror}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            if self._state_log is None:
                state_log.store.close()
                state_log.file.close()
            else:
                state_log.undo_handover()

    def _execute(self, state_log: StateLog, reexec: ReexecState) -> None:
        """Replace this process by the same program. Raises OSError."""
        closing = tuple(socket_closer.identified([*self._broker.switch.closing(), *socket_closer.waiting()]))
        left = replace(reexec, state=state_log.file.fd, connection_store=tuple(state_log.store.descriptors), closing=closing)
        set_reexec_state(os.environ, left)
        folder = os.getcwd()
        try:
            os.chdir(reexec.folder)
            os.execv(sys.executable, own_command())  # noqa: S606 - this program itself, without a shell
        finally:
            os.chdir(folder)
            unset_reexec_state(os.environ, left)

    def _record_handover(self, state: State) -> None:
        """Record the size of what is handed over."""
        self._journal.record(log_messages.HANDED_OVER, connections=len(state.connections), packets=len(state.packets))

    def _live(self) -> Iterator[int]:
        """Iterate over the connections to store; some may come or go meanwhile."""
        roster, number = self._broker.roster, 0
        while (client := roster.following(number)) is not None:
            number = client.connection
            yield client.fd

    def _new_state_log(self) -> StateLog:
        """Return a new state log. Raises HandoverError if there is not enough memory or no descriptor."""
        try:
            file = StateFile.create()
            try:
                store = ConnectionStore.create(self._live)
            except OSError:
                file.close()
                raise
        except OSError as error:
            raise HandoverError(f"cannot create the state file: {error.strerror}") from None
        return StateLog(file, store, self._broker)

    def _create_state_log(self) -> None:
        """Log every change to a new state log, which the service manager keeps. Raises StoreError."""
        try:
            state_log = self._new_state_log()
        except HandoverError as error:
            self._journal.record(log_messages.STATE_NOT_STORED, reason=str(error))
            return
        service_manager.store_descriptors(state_log.file.fd, state_log.store.descriptors)
        self._begin(state_log)

    def _begin(self, state_log: StateLog) -> None:
        """Write the current state to *state_log*, and every change from now on."""
        state_log.begin()
        self._state_log = state_log
        self._broker.set_change_log(state_log)

    def _restore_or_reject(self, inherited: InheritedState, progress: Callable[[], None]) -> _Restored | None:
        """Restore the inherited state, or reject it, record why, and close its connections."""
        try:
            return self._restore(inherited, progress)
        except StateError as error:
            closed = sum(close_stored(end) for end in inherited.connection_store)
            self._journal.record(log_messages.HANDOVER_REFUSED, reason=str(error), closed=closed)
            return None
        finally:
            # This process uses duplicates. The service manager, if there is one, still has the originals.
            for fd in inherited.descriptors:
                with suppress(OSError):
                    os.close(fd)

    def _restore(self, inherited: InheritedState, progress: Callable[[], None]) -> _Restored:
        """Restore the inherited state. Raises StateError, and has changed nothing, if that is impossible."""
        began = time.monotonic()
        with ExitStack() as on_error:
            file, state = _read(inherited.state)
            on_error.callback(file.close)
            try:
                store = ConnectionStore.adopt(list(inherited.connection_store), self._live)
                on_error.callback(store.close)
                fds, is_cut = store.peek()
            except (OSError, ValueError) as error:
                raise StateError(f"its connections are missing: {error}") from None
            on_error.pop_all()
        if is_cut:
            self._journal.record(log_messages.CONNECTION_NOT_STORED)
        outcome = restore.restore(self._broker, state, fds, progress)
        manner = "after a planned restart" if state.bus.is_orderly else "after a crash"
        return _Restored(file, store, outcome, f"{manner}, in {(time.monotonic() - began) * 1000:.0f} ms")


def own_command() -> list[str]:
    """Return the command line that starts this program again, with the same interpreter."""
    return [sys.executable, *sys.orig_argv[1:]]


def _read(fd: int | None) -> tuple[StateFile, State]:
    """Return the state of the previous process, and log the attempt to restore it. Raises StateError."""
    if fd is None:
        raise StateError("it is missing")
    try:
        file = StateFile.adopt(fd)
        state = records.replay(file.records())
        if state.tries >= MAX_TRIES:
            raise StateError(f"{state.tries} processes have failed to restore it")
        file.append(records.tried())
    except OSError as error:
        raise StateError(f"it cannot be read: {error.strerror}") from None
    return file, state
