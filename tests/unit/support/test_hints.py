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
    "sbus/errors.py: {systemctl(address)} restart sbus.socket": "the path is gone, for a client",
    "sbus/store/errors.py: {systemctl(bus)} start sbus-store": "the store was stopped",
    "sbusctl/checks/services.py: {systemctl} restart {BLOB_SOCKET}": "the socket for blobs is gone",
    "sbusctl/checks/bus.py: {unit.systemctl} restart {socket}": "the path is gone, for another check",
    "sbusctl/checks/bus.py: {unit.systemctl} restart {socket_of(unit)}": "the path is a file",
    "sbusctl/checks/installation.py: chmod a+rX {error.file}": "a drop-in is not readable",
    "sbusctl/checks/installation.py: {unit.systemctl} reset-failed {unit.name} {socket}": "the configuration has an error",
    "sbusctl/checks/installation.py: {unit.systemctl} restart {socket}": "the configuration has an error",
    "sbusctl/checks/installation.py: {unit.systemctl} try-reload-or-restart {unit.name}": "a drop-in has a fault",
    "sbusctl/checks/bus.py: {unit.systemctl} restart {name}": "the path is gone, for doctor",
    "sbusctl/checks/bus.py: {unit.systemctl} restart {unit.name}": "journald did not run",
    "sbusctl/checks/services.py: {systemctl} enable --now {TRIGGER}": "the trigger is not enabled",
    "sbusctl/checks/services.py: {systemctl} enable --now {feed}": "a feed of the trigger does not run",
    "sbusctl/checks/services.py: {systemctl} restart {TRIGGER}": "the trigger was stopped",
    "sbusctl/checks/units.py: {systemctl} enable --now {name}": "the socket was stopped, for doctor",
    "sbusctl/checks/units.py: {systemctl} enable {name}": "the socket is not enabled",
    "sbusctl/checks/units.py: {systemctl} reset-failed {name}": "the store has an error in its configuration",
    "sbusctl/checks/units.py: {systemctl} reset-failed {name} {socket}": "the bus has failed",
    "sbusctl/checks/units.py: {systemctl} reset-failed {service} {name}": "the port of the metrics is taken",
    "sbusctl/checks/units.py: {systemctl} restart {name}": "the store has an error in its configuration",
    "sbusctl/checks/units.py: {systemctl} restart {socket}": "the service is masked",
    "sbusctl/checks/units.py: {systemctl} start {name}": "the port of the metrics is taken",
    "sbusctl/checks/units.py: {systemctl} start {socket}": "the bus has failed",
    "sbusctl/checks/units.py: {systemctl} unmask": "the service is masked",
    "sbus_archive/storage/files.py: runuser": "test_recorder.py: test_root_gets_the_command_that_updates_the_tables_of_the_service",
    "sbusctl/fresh_tables.py: sudo sbusctl report --now": _REPORT,
    "sbusctl/commands/report.py: sudo sbusctl report --now": _REPORT,
    "sbusctl/commands/report.py: sbusctl report --now": _REPORT,
    "sbus_archive/pipeline/main.py: systemctl start sbus-pipeline.service": (
        "test_recorder.py: test_the_pipeline_makes_tables_as_its_unit_has_it"
    ),
    "sbus_archive/pipeline/progress.py: sbusctl report --now": _REPORT,
    "sbus_archive/tables/storage.py: sbusctl report --now": _REPORT,
    "sbusctl/checks/hosts.py: systemctl enable --now {LINK_UNIT}": "test_link.py: linked",
}
"""For each hint, the situation of tests/system/test_hints.py or the function of another system test that runs its command."""

_WRITTEN_BY = "it says which command wrote a file"

NOT_RUN = {
    "it only shows something, and repairs nothing": (
        "sbusd/broker/access.py: sbusd --check-config",
        "sbus/bus_documents.py: sbusctl doctor",
        "sbus/bus_unit.py: journalctl",
        "sbus/bus_unit.py: {self.unit.systemctl} status {self.unit.name}",
        "sbus/errors.py: journalctl {'--user ' if systemctl(address) != 'systemctl' else ''}-u {unit}",
        "sbus/store/errors.py: {sbusctl} store streams",
        "sbusctl/checks/bus.py: journalctl",
        "sbusctl/checks/bus.py: ss -xlp",
        "sbusctl/checks/bus.py: ss -xpH | grep 'u_seq.*users:'",
        "sbusctl/checks/bus.py: {unit.systemctl} status {unit.name}",
        "sbusctl/checks/installation.py: sbusd --check-config",
        "sbusctl/checks/services.py: journalctl -u sbus-metrics.service",
        "sbusctl/checks/services.py: sbusctl doctor",
        "sbusctl/checks/store.py: sbusctl doctor",
        "sbusctl/checks/store.py: sbusctl store peek --queue --state dead QUEUE",
        "sbusctl/checks/store.py: sbusctl store read STREAM",
        "sbusctl/checks/units.py: journalctl",
        "sbusctl/checks/units.py: systemctl status",
        "sbusctl/checks/units.py: {systemctl} status {name}",
        "sbusctl/fresh_tables.py: journalctl",
        "sbusctl/fresh_tables.py: journalctl -u {PIPELINE}",
        "sbusctl/fresh_tables.py: journalctl -u {RECORDER}",
        "sbus_services/link/administration.py: sbusctl link status",
        "sbus_services/relay/redis/client.py: journalctl -u redis-server@sbus-relay.service",
    ),
    "it installs a package from a network, which tests do not use": (
        "sbus_archive/optional_packages.py: pip install 'sbusd[{extra}]'",
        "sbus_archive/optional_packages.py: python3 -m pip install --target {LOCAL} {shlex.join(EXTRAS[extra])}",
        "sbusctl/commands/relay.py: pip install 'sbusd[relay]'",
        "sbus_services/feeds/dbus/connection.py: pip install 'sbusd[dbus]'",
        "sbus_services/link/network/credential_files.py: pip install 'sbusd[link]'",
        "sbus_archive/pipeline/session.py: apt-get install default-jre-headless",
        "sbus_services/relay/main.py: pip install 'sbusd[relay]'",
    ),
    "a test of tests/integration or tests/unit runs it, because it needs no machine": (
        "sbus_archive/storage/ownership.py: sbus-ship --claim",
        "sbus_archive/tables/delta.py: sbus-pipeline",
        "sbus_archive/tables/hours.py: sbus-pipeline --rebuild",
        "sbus_archive/tables/publication.py: sbus-pipeline",
        "sbus_archive/tables/storage.py: sbus-pipeline",
        "sbusctl/checks/store.py: sbusctl store acknowledge",
        "sbusctl/checks/store.py: sbusctl store purge STREAM",
        "sbusctl/checks/store.py: sbusctl store revive QUEUE NUMBER",
        "sbusctl/commands/report.py: sbusctl report --now --archive DIR --tables {tables}",
        "sbusctl/fresh_tables.py: sbus-pipeline",
        "sbusctl/fresh_tables.py: {sbusctl(address)} record --archive {archive}",
        "sbusctl/fresh_tables.py: sbusctl report",
        "sbusctl/payloads.py: sbusctl pub --blob FILE KEY",
        "sbus_archive/pipeline/main.py: sbusctl record --archive {archive}",
        "sbus_archive/shipping/main.py: sbus-ship",
        "sbus_archive/shipping/main.py: sbus-ship --claim",
        "sbus_services/store/engine/intake.py: sbusctl store purge STREAM",
    ),
    "it is the command of another hint, which is run, for another unit": (
        "sbus_services/blob/connection.py: {systemctl(default)} restart sbus-blob.socket",
        "sbus/sync/blob_socket.py: {systemctl(address)} restart sbus-blob.socket",
        "sbusctl/checks/services.py: systemctl restart {METRICS_UNIT}",
        "sbusctl/checks/services.py: {systemctl} reset-failed {feed}",
        "sbusctl/checks/services.py: {systemctl} restart {feed}",
        "sbusctl/checks/services.py: {systemctl} unmask {feed}",
        "sbusctl/checks/units.py: {systemctl} enable --now {RECORDER}",
        "sbusctl/commands/link.py: systemctl start sbus-link",
        "sbusctl/fresh_tables.py: systemctl enable --now {RECORDER}",
        "sbusctl/fresh_tables.py: systemctl restart {RECORDER}",
        "sbus/errors.py: systemctl start sbus-relay",
        "sbus_services/metrics/main.py: systemctl restart sbus-metrics.socket",
        "sbus_archive/pipeline/main.py: systemctl enable --now sbus-recorder.service",
        "sbus_archive/pipeline/live/main.py: systemctl enable --now sbus-live.service",
        "sbus_services/relay/redis/client.py: systemctl start redis-server@sbus-relay.service",
        "sbus_services/store/service.py: {systemctl(bus)} restart sbus-store",
    ),
    _WRITTEN_BY: ("sbus_services/link/permissions.py: sbusctl link config",),
    "it changes the kernel of the whole machine": ("sbusctl/checks/installation.py: sysctl net.core.wmem_max={size}",),
    "a damaged file cannot be made without stopping at a certain write": (
        "sbusctl/checks/store.py: sqlite3 {newest} .recover",
        "sbus_services/store/engine/database.py: sqlite3 {printable(str(kept))} .recover",
    ),
    "the owner of the file decides; unit tests check its words": (
        "sbus_archive/storage/files.py: chmod o-rwx {folder}",
        "sbus_programs/config/certificates.py: chown {service_user} {shlex.quote(str(file))}",
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
