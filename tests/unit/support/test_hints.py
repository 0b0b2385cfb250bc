"""Each command that a message tells its reader to run is run by a system test, or it has a reason why not."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from sbusctl.application import application
from tests.support.hints import hints_in, source_hints
from tests.system.test_hints import SITUATIONS
from tools.stage import ROOT

_REPORT = "test_recorder.py: test_one_command_makes_a_report_of_the_last_minutes"

RUN = {
    "client/errors.py: {systemctl(address)} restart sbus.socket": "the path is gone, for a client",
    "client/store/errors.py: {systemctl(bus)} start sbus-store": "the store was stopped",
    "ctl/checks/services.py: {systemctl} restart {BLOB_SOCKET}": "the socket for blobs is gone",
    "ctl/checks/bus.py: {unit.systemctl} restart {socket}": "the path is gone, for another check",
    "ctl/checks/bus.py: {unit.systemctl} restart {socket_of(unit)}": "the path is a file",
    "ctl/checks/installation.py: chmod a+rX {error.file}": "a drop-in is not readable",
    "ctl/checks/installation.py: {unit.systemctl} reset-failed {unit.name} {socket}": "the configuration has an error",
    "ctl/checks/installation.py: {unit.systemctl} restart {socket}": "the configuration has an error",
    "ctl/checks/installation.py: {unit.systemctl} try-reload-or-restart {unit.name}": "a drop-in has a fault",
    "ctl/checks/bus.py: {unit.systemctl} restart {name}": "the path is gone, for doctor",
    "ctl/checks/bus.py: {unit.systemctl} restart {unit.name}": "journald did not run",
    "ctl/checks/services.py: {systemctl} enable --now {TRIGGER}": "the trigger is not enabled",
    "ctl/checks/services.py: {systemctl} enable --now {feed}": "a feed of the trigger does not run",
    "ctl/checks/services.py: {systemctl} restart {TRIGGER}": "the trigger was stopped",
    "ctl/checks/units.py: {systemctl} enable --now {name}": "the socket was stopped, for doctor",
    "ctl/checks/units.py: {systemctl} enable {name}": "the socket is not enabled",
    "ctl/checks/units.py: {systemctl} reset-failed {name}": "the store has an error in its configuration",
    "ctl/checks/units.py: {systemctl} reset-failed {name} {socket}": "the bus has failed",
    "ctl/checks/units.py: {systemctl} reset-failed {service} {name}": "the port of the metrics is taken",
    "ctl/checks/units.py: {systemctl} restart {name}": "the store has an error in its configuration",
    "ctl/checks/units.py: {systemctl} restart {socket}": "the service is masked",
    "ctl/checks/units.py: {systemctl} start {name}": "the port of the metrics is taken",
    "ctl/checks/units.py: {systemctl} start {socket}": "the bus has failed",
    "ctl/checks/units.py: {systemctl} unmask": "the service is masked",
    "archive/files.py: runuser": "test_recorder.py: test_root_gets_the_command_that_updates_the_tables_of_the_service",
    "ctl/fresh_tables.py: sudo sbusctl report --now": _REPORT,
    "ctl/commands/report.py: sudo sbusctl report --now": _REPORT,
    "ctl/commands/report.py: sbusctl report --now": _REPORT,
    "pipeline/main.py: systemctl start sbus-pipeline.service": "test_recorder.py: test_the_pipeline_makes_tables_as_its_unit_has_it",
    "pipeline/progress.py: sbusctl report --now": _REPORT,
    "archive/tables/storage.py: sbusctl report --now": _REPORT,
    "ctl/checks/hosts.py: systemctl enable --now {LINK_UNIT}": "test_link.py: linked",
}
"""For each hint, the situation of tests/system/test_hints.py or the function of another system test that runs its command."""

_WRITTEN_BY = "it says which command wrote a file"

NOT_RUN = {
    "it only shows something, and repairs nothing": (
        "broker/access.py: sbusd --check-config",
        "client/bus_documents.py: sbusctl doctor",
        "client/bus_unit.py: journalctl",
        "client/bus_unit.py: {self.unit.systemctl} status {self.unit.name}",
        "client/errors.py: journalctl {'--user ' if systemctl(address) != 'systemctl' else ''}-u {unit}",
        "client/store/errors.py: {sbusctl} store streams",
        "ctl/checks/bus.py: journalctl",
        "ctl/checks/bus.py: ss -xlp",
        "ctl/checks/bus.py: ss -xpH | grep 'u_seq.*users:'",
        "ctl/checks/bus.py: {unit.systemctl} status {unit.name}",
        "ctl/checks/installation.py: sbusd --check-config",
        "ctl/checks/services.py: journalctl -u sbus-metrics.service",
        "ctl/checks/services.py: sbusctl doctor",
        "ctl/checks/store.py: sbusctl doctor",
        "ctl/checks/store.py: sbusctl store peek --queue --state dead QUEUE",
        "ctl/checks/store.py: sbusctl store read STREAM",
        "ctl/checks/units.py: journalctl",
        "ctl/checks/units.py: systemctl status",
        "ctl/checks/units.py: {systemctl} status {name}",
        "ctl/fresh_tables.py: journalctl",
        "ctl/fresh_tables.py: journalctl -u {PIPELINE}",
        "ctl/fresh_tables.py: journalctl -u {RECORDER}",
        "link/administration.py: sbusctl link status",
        "relay/redis/client.py: journalctl -u redis-server@sbus-relay.service",
    ),
    "it installs a package from a network, which tests do not use": (
        "archive/optional_packages.py: pip install 'sbusd[{extra}]'",
        "archive/optional_packages.py: python3 -m pip install --target {LOCAL} {shlex.join(EXTRAS[extra])}",
        "ctl/commands/relay.py: pip install 'sbusd[relay]'",
        "feeds/dbus/connection.py: pip install 'sbusd[dbus]'",
        "link/network/credential_files.py: pip install 'sbusd[link]'",
        "pipeline/session.py: apt-get install default-jre-headless",
        "relay/main.py: pip install 'sbusd[relay]'",
    ),
    "a test of tests/integration or tests/unit runs it, because it needs no machine": (
        "archive/ownership.py: sbus-ship --claim",
        "archive/tables/delta.py: sbus-pipeline",
        "archive/tables/hours.py: sbus-pipeline --rebuild",
        "archive/tables/publication.py: sbus-pipeline",
        "archive/tables/storage.py: sbus-pipeline",
        "ctl/checks/store.py: sbusctl store acknowledge",
        "ctl/checks/store.py: sbusctl store purge STREAM",
        "ctl/checks/store.py: sbusctl store revive QUEUE NUMBER",
        "ctl/commands/report.py: sbusctl report --now --archive DIR --tables {tables}",
        "ctl/fresh_tables.py: sbus-pipeline",
        "ctl/fresh_tables.py: {sbusctl(address)} record --archive {archive}",
        "ctl/fresh_tables.py: sbusctl report",
        "ctl/payloads.py: sbusctl pub --blob FILE KEY",
        "pipeline/main.py: sbusctl record --archive {archive}",
        "shipping/main.py: sbus-ship",
        "shipping/main.py: sbus-ship --claim",
        "store/engine/intake.py: sbusctl store purge STREAM",
    ),
    "it is the command of another hint, which is run, for another unit": (
        "blob/connection.py: {systemctl(default)} restart sbus-blob.socket",
        "client/sync/blob_socket.py: {systemctl(address)} restart sbus-blob.socket",
        "ctl/checks/services.py: systemctl restart {METRICS_UNIT}",
        "ctl/checks/services.py: {systemctl} reset-failed {feed}",
        "ctl/checks/services.py: {systemctl} restart {feed}",
        "ctl/checks/services.py: {systemctl} unmask {feed}",
        "ctl/checks/units.py: {systemctl} enable --now {RECORDER}",
        "ctl/commands/link.py: systemctl start sbus-link",
        "ctl/fresh_tables.py: systemctl enable --now {RECORDER}",
        "ctl/fresh_tables.py: systemctl restart {RECORDER}",
        "client/errors.py: systemctl start sbus-relay",
        "metrics/main.py: systemctl restart sbus-metrics.socket",
        "pipeline/main.py: systemctl enable --now sbus-recorder.service",
        "pipeline/live/main.py: systemctl enable --now sbus-live.service",
        "relay/redis/client.py: systemctl start redis-server@sbus-relay.service",
        "store/service.py: {systemctl(bus)} restart sbus-store",
    ),
    _WRITTEN_BY: ("link/permissions.py: sbusctl link config",),
    "it changes the kernel of the whole machine": ("ctl/checks/installation.py: sysctl net.core.wmem_max={size}",),
    "a damaged file cannot be made without stopping at a certain write": (
        "ctl/checks/store.py: sqlite3 {newest} .recover",
        "store/engine/database.py: sqlite3 {printable(str(kept))} .recover",
    ),
    "the owner of the file decides; unit tests check its words": (
        "archive/files.py: chmod o-rwx {folder}",
        "config/certificates.py: chown {service_user} {shlex.quote(str(file))}",
    ),
}
"""Hints whose command no system test runs, by the reason."""


KNOWN = [*RUN, *(each for hints in NOT_RUN.values() for each in hints)]


def test_each_hint_is_run_or_has_a_reason() -> None:
    assert sorted(set(KNOWN)) == sorted(KNOWN)
    found = source_hints()
    assert (sorted(found - set(KNOWN)), sorted(set(KNOWN) - found)) == ([], [])


@pytest.mark.parametrize("where", sorted(set(RUN.values())))
def test_what_runs_a_hint_exists(where: str) -> None:
    file, is_function, name = where.partition(".py: ")
    if not is_function:
        assert where in {each.name for each in SITUATIONS}
        return
    assert f"def {name}(" in (ROOT / "tests" / "system" / f"{file}.py").read_text("utf-8")


def _units(scope: str) -> set[str]:
    """Return the names of units of *scope*, with and without their suffix."""
    paths = (ROOT / "units" / scope).iterdir()
    return {name for path in paths for name in (path.name, path.stem)}


def test_a_hint_without_a_scope_names_a_unit_that_only_the_system_has() -> None:
    for hint in source_hints():
        if found := re.search(r": systemctl (?:start|restart|enable --now|status) ([\w.@-]+)", hint):
            assert found[1] in _units("system") - _units("user"), hint


def test_no_hint_starts_a_socket_unit_by_its_name() -> None:
    """It does nothing while the unit is active, as after its socket was lost. Only a restart helps in both cases."""
    assert hints_in("no socket: start sbus-x.socket") == ["start sbus-x.socket"]
    assert hints_in("restart sbus-x.socket") == []
    assert [hint for hint in source_hints() if re.search(r"\bstart sbus[\w@-]*\.socket", hint)] == []


_SBUSCTL = {each.partition("sbusctl ")[2] for each in KNOWN if each not in NOT_RUN[_WRITTEN_BY] and re.search(": (sudo )?sbusctl ", each)}


@pytest.mark.parametrize("words", sorted(_SBUSCTL))
def test_sbusctl_accepts_the_command_line_of_a_hint(words: str) -> None:
    """Without an argument that it needs, it would end with status 2."""
    command: Any = typer.main.get_command(application())
    rest = ["/x" if word.startswith("{") else word for word in words.split()]
    context = command.make_context("sbusctl", rest)
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
