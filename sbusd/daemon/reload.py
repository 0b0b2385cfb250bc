"""Reading the configuration again while the bus runs. Spec: sbusd(8), SIGNALS; sbusd.toml(5)."""

from __future__ import annotations

from dataclasses import fields

from sbusd.broker import log_messages
from sbusd.broker.broker import Broker
from sbusd.broker.log import BusLog
from sbusd.broker.ownership import BusOwnership
from sbusd.config import ConfigError, Configuration, DaemonSettings, Fault, load_configuration, require_open
from sbusd.daemon.options import Options

CHANGEABLE = frozenset({"allowed_users", "admins", "protected_users", "policy", "rights", "log", "quotas"})
"""Settings that hold as soon as they are read again; the others are built into the switch, which only a new bus has anew."""


class Reloader:
    """Reads the files of one bus again, and lets what they say hold, or, where they are wrong, what held before."""

    def __init__(self, options: Options, configuration: Configuration, broker: Broker, journal: BusLog) -> None:
        """Begin with *configuration*, which holds; *options* say where the files are and who may connect besides."""
        self._options = options
        self._settings = configuration.settings
        self._configuration = configuration
        self._broker = broker
        self._journal = journal

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What could not be used of the configuration that holds."""
        return self._configuration.faults

    def report_faults(self) -> None:
        """Record each fault of the configuration that holds, and count them for the statistics."""
        self._broker.set_faults(len(self.faults))
        for fault in self.faults:
            self._journal.record(log_messages.CONFIGURATION_FAULT, reason=str(fault))

    def reload(self) -> None:
        """Read the files, and record what has come of it. Never raises; wrong files change nothing. Call it between turns."""
        try:
            self._reload()
        except ConfigError as error:
            self._journal.record(log_messages.RELOAD_FAILED, reason=str(error))
        except Exception as error:
            # A defect of ours must not end the bus because its configuration was touched.
            self._journal.record(log_messages.INTERNAL_ERROR, error=error, where="reloading the configuration", reason=repr(error))

    def _reload(self) -> None:
        """Read the files, and let them hold. Raises ConfigError, and has changed nothing, if they are wrong."""
        configuration = self._read()
        settings = configuration.settings
        ownership = BusOwnership.of(settings, self._options.allowed_users, ends_when_empty=self._options.exit_after_last)
        self._journal.configure(settings.log)
        self._broker.reconfigure(settings, ownership)
        self._configuration = configuration
        self._journal.record(log_messages.RELOADED, files=configuration.file_names or "none, the defaults apply")
        self.report_faults()
        # Against those that the bus was started with: what waits for a restart is said each time.
        if waiting := changed_keys(self._settings, settings):
            self._journal.record(log_messages.RESTART_NEEDED, keys=", ".join(waiting))

    def _read(self) -> Configuration:
        """Return what the files say. Raises ConfigError, also where that would deny every key: what holds is better."""
        held = self._configuration
        configuration = load_configuration(self._options.main_file, required=self._options.config_file is not None, held=held)
        require_open(configuration)
        return configuration


def changed_keys(running: DaemonSettings, read: DaemonSettings) -> list[str]:
    """Return the keys, as sbusd.toml(5) spells them, that differ and hold only for a bus that is started anew."""
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
