"""The reload of the configuration while the bus runs. Spec: sbusd(8), SIGNALS; sbusd.toml(5)."""

from __future__ import annotations

import contextlib
import os
from dataclasses import fields
from queue import Empty, SimpleQueue
from threading import Thread

from sbus_programs.config import ConfigError, Configuration, DaemonSettings, Fault, load_configuration, require_open
from sbus_programs.systemd.log_records import MAX_FACT_BYTES
from sbusd.broker import log_messages
from sbusd.broker.access import BusOwnership
from sbusd.broker.broker import Broker
from sbusd.broker.log import BusLog
from sbusd.daemon.options import Options
from sbusd.dataplane.contract import Switch

CHANGEABLE = frozenset({"allowed_users", "admins", "protected_users", "policy", "rights", "log", "quotas"})
"""Settings that a reload applies. The switch has the others built in, so they require a restart."""


class Reloader:
    """Reloads the configuration of one bus. If it is invalid, the previous one still applies."""

    def __init__(self, options: Options, configuration: Configuration, broker: Broker, journal: BusLog) -> None:
        """Start with the current *configuration*; *options* name the files, and more users who may connect."""
        self._options = options
        self._settings = configuration.settings
        self._configuration = configuration
        self._broker = broker
        self._journal = journal
        self._requests = SimpleQueue[None]()
        self._found = SimpleQueue[Configuration | Exception]()
        self._event = -1
        self._thread: Thread | None = None

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults of the current configuration."""
        return self._configuration.faults

    def report_faults(self) -> None:
        """Record each fault of the current configuration, and count them for the statistics."""
        self._broker.set_faults(len(self.faults))
        for fault in self.faults:
            self._journal.record(log_messages.CONFIGURATION_FAULT, reason=fault.shown(MAX_FACT_BYTES))

    def start_thread(self, switch: Switch) -> None:
        """Start the thread that reads the files, before the first turn, because the loop would wait until it runs. Raises OSError."""
        # Open until the process ends: the thread may still write to it.
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        switch.watch(self._event, self._drain)
        thread = Thread(target=self._read_on_request, name="configuration", daemon=True)
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def request(self) -> None:
        """Read the files on the thread: a directory service that knows their users can take seconds. :meth:`finish` applies them."""
        if self._thread is None:
            self._found.put(RuntimeError("no thread was left when the bus started; restart it"))
        else:
            self._requests.put(None)

    def finish(self) -> bool:
        """Apply what the thread has read since, and record the result; return whether there was something. Call it between turns."""
        try:
            found = self._found.get_nowait()
        except Empty:
            return False
        self._finish(found)
        return True

    def reload(self) -> None:
        """Reload the files at once, and record the result. Never raises; invalid files change nothing. Call it between turns."""
        self._finish(self._read())

    def _read_on_request(self) -> None:
        """Read the files whenever that is requested."""
        while True:
            self._requests.get()
            self._found.put(self._read())
            os.eventfd_write(self._event, 1)

    def _drain(self) -> None:
        """Forget that the thread has read something: the loop returns for it."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)

    def _finish(self, found: Configuration | Exception) -> None:
        """Apply what was read, or record why that is impossible."""
        error = found if isinstance(found, Exception) else None
        if not isinstance(found, Exception):
            try:
                self._apply(found)
            except Exception as defect:
                # It must not end the bus because its configuration was changed.
                error = defect
        if isinstance(error, ConfigError):
            self._journal.record(log_messages.RELOAD_FAILED, reason=error.shown(MAX_FACT_BYTES))
        elif error is not None:
            self._journal.record(log_messages.INTERNAL_ERROR, error=error, where="reloading the configuration", reason=repr(error))

    def _apply(self, configuration: Configuration) -> None:
        """Apply a configuration."""
        settings = configuration.settings
        options, faults = self._options, configuration.faults
        ownership = BusOwnership.of(settings, options.allowed_users, ends_when_empty=options.exit_after_last, faults=faults)
        self._journal.configure(settings.log)
        self._broker.reconfigure(settings, ownership)
        self._configuration = configuration
        self._journal.record(log_messages.RELOADED, files=configuration.file_names or "none, the defaults apply")
        self.report_faults()
        # Compared with the settings at the start, so that each reload reports what still requires a restart.
        if keys := changed_keys(self._settings, settings):
            self._journal.record(log_messages.RESTART_NEEDED, keys=", ".join(keys))

    def _read(self) -> Configuration | Exception:
        """Return the configuration in the files, or the error, also if it would deny every key: then the current one is better."""
        current = self._configuration
        try:
            configuration = load_configuration(self._options.main_file, required=self._options.config_file is not None, held=current)
            require_open(configuration)
        except Exception as error:
            return error
        return configuration


def changed_keys(running: DaemonSettings, read: DaemonSettings) -> list[str]:
    """Return the keys, as in sbusd.toml(5), that differ and require a restart."""
    changed = []
    for each in fields(DaemonSettings):
        before, after = getattr(running, each.name), getattr(read, each.name)
        if each.name in CHANGEABLE or before == after:
            continue
        if each.name == "limits":
            changed += [f"limits.{limit.name}" for limit in fields(before) if getattr(before, limit.name) != getattr(after, limit.name)]
        else:
            changed.append(each.name)
    return changed
