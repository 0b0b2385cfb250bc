"""The reload of the configuration while the bus runs. Spec: sbusd(8), SIGNALS; sbusd.toml(5)."""

from __future__ import annotations

from dataclasses import fields

from sbusd.broker import log_messages
from sbusd.broker.access import BusOwnership
from sbusd.broker.broker import Broker
from sbusd.broker.log import BusLog
from sbusd.config import ConfigError, Configuration, DaemonSettings, Fault, load_configuration, require_open
from sbusd.daemon.options import Options

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

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults of the current configuration."""
        return self._configuration.faults

    def report_faults(self) -> None:
        """Record each fault of the current configuration, and count them for the statistics."""
        self._broker.set_faults(len(self.faults))
        for fault in self.faults:
            self._journal.record(log_messages.CONFIGURATION_FAULT, reason=str(fault))

    def reload(self) -> None:
        """Reload the files, and record the result. Never raises; invalid files change nothing. Call it between turns."""
        try:
            self._reload()
        except ConfigError as error:
            self._journal.record(log_messages.RELOAD_FAILED, reason=str(error))
        except Exception as error:
            # A defect must not end the bus because its configuration was changed.
            self._journal.record(log_messages.INTERNAL_ERROR, error=error, where="reloading the configuration", reason=repr(error))

    def _reload(self) -> None:
        """Read the files, and apply them. Raises ConfigError, and has changed nothing, if they are invalid."""
        configuration = self._read()
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

    def _read(self) -> Configuration:
        """Return the configuration in the files. Raises ConfigError, also if it would deny every key: then the current one is better."""
        current = self._configuration
        configuration = load_configuration(self._options.main_file, required=self._options.config_file is not None, held=current)
        require_open(configuration)
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
