"""``sbusctl doctor``: checks the installation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import typer

from sbus import bus_address
from sbus.bus_documents import parse_document
from sbus.bus_unit import named_unit
from sbus.protocol.errors import SbusError
from sbus_programs.config import default_main_file
from sbus_programs.systemd.processes import command_name
from sbusctl.checks import CheckResult, Finding, bus, hosts, installation, services, store, units
from sbusctl.commands.link import link_state
from sbusctl.errors import error_text
from sbusctl.formatting import human_plural, wrapped
from sbusctl.output import JsonStyle, is_terminal, terminal_width, visible, write_json, write_page
from sbusctl.settings import Settings, settings_of

_CAUSES = ("address", "configuration", "faults", "listener", "sbus.service", "sbus.socket", "socket", "connection", "protocol")
"""The checks whose failure stops the bus, causes before consequences: a faulty configuration makes the service fail, then the socket."""

_PROOFS = ("connection", "protocol")
"""The checks that succeed if the bus works."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis: in ``cause`` the finding to act on first, None if there is nothing to do."""

    works: bool
    cause: Finding | None
    others: int
    """Further findings that failed or warn."""

    @property
    def text(self) -> str:
        """The diagnosis in one line."""
        state = "the bus works" if self.works else "the bus does not work"
        if self.cause is None:
            return state
        more = f" ({human_plural(self.others, 'further problem')} below)" if self.others else ""
        joint = ", but" if self.works else ":"
        return f"{state}{joint} {self.cause.check}: {self.cause.reason}{more}"


def judge(findings: Sequence[Finding]) -> Diagnosis:
    """Return the diagnosis for *findings*."""
    succeeded = {each.check for each in findings if each.result is CheckResult.OK}
    works = succeeded.issuperset(_PROOFS)
    problems = [each for each in findings if each.result in (CheckResult.FAIL, CheckResult.WARN)]
    problems.sort(key=_rank)
    return Diagnosis(works, problems[0] if problems else None, max(0, len(problems) - 1))


def _rank(finding: Finding) -> tuple[bool, int]:
    """Return the order of *finding* among problems: failures first, then causes."""
    order = _CAUSES.index(finding.check) if finding.check in _CAUSES else len(_CAUSES)
    return finding.result is not CheckResult.FAIL, order


_COLORS = {CheckResult.OK: "green", CheckResult.WARN: "yellow", CheckResult.FAIL: "red", CheckResult.SKIP: "bright_black"}


def doctor_command(context: typer.Context) -> None:
    """Check the installation, and suggest fixes.

    The first line says whether the bus works, or the cause if it does not. The exit status is 1 if a check fails.
    """
    settings = settings_of(context)
    findings = examine(settings)
    diagnosis = judge(findings)
    failed = sum(finding.result is CheckResult.FAIL for finding in findings)
    if settings.json is JsonStyle.OFF:
        color = is_terminal() and "NO_COLOR" not in os.environ
        width = terminal_width()
        page = diagnosis_lines(diagnosis, width) if settings.legend else []
        write_page(page + lines(findings, legend=settings.legend, color=color, width=width), pager=settings.pager)
    else:
        cause = None if diagnosis.cause is None else finding_json(diagnosis.cause)
        checks = [finding_json(each) for each in findings]
        write_json({"works": diagnosis.works, "cause": cause, "checks": checks, "failed": failed}, settings.json)
    if failed:
        raise typer.Exit(1)


def finding_json(finding: Finding) -> dict[str, str]:
    """Return *finding* for JSON."""
    return {"check": finding.check, "result": finding.result.value, "reason": finding.reason, "advice": finding.advice}


def diagnosis_lines(diagnosis: Diagnosis, width: int | None) -> list[str]:
    """Return *diagnosis* with its advice as text, wrapped to *width*, and an empty line."""
    text = diagnosis.text
    page = _wrapped(f"{text[:1].upper()}{text[1:]}", width, 0)
    if diagnosis.cause is not None and diagnosis.cause.advice:
        advice, *rest = _wrapped(diagnosis.cause.advice, width, 3)
        page += [f"-> {advice}", *(f"   {line}" for line in rest)]
    return [*page, ""]


def examine(settings: Settings) -> list[Finding]:
    """Return the findings of all checks on the chosen bus."""
    try:
        address = settings.bus_address()
    except SbusError as error:
        return [
            Finding("address", CheckResult.FAIL, error_text(error), "log in, or use --address"),
            installation.check_packet(),
        ]
    scope = _scope(address)
    findings = [Finding("address", CheckResult.OK, address), *bus.check_socket(address, is_for_all=scope == "system")]
    findings += _bus_findings(settings, address)
    if scope is not None:
        findings += _store_findings(settings, scope) + services.check_blobs(_unit(scope, services.BLOB_SOCKET), address, scope)
        findings += services.check_trigger(scope) + services.check_files(scope)
    if scope == "system":
        findings += services.check_metrics(_unit(scope, services.METRICS_UNIT)) + _link_findings(settings)
        findings += hosts.check_relay(_unit(scope, hosts.RELAY_UNIT))
    return findings + (units.check_addons(scope) if scope is not None else [])


def _bus_findings(settings: Settings, address: str) -> list[Finding]:
    """Return the findings about the bus at *address* itself: its response, its units, its process and its configuration."""
    findings: list[Finding] = []
    peer: int | None = None
    connections: int | None = None
    failure: Exception | None = None
    unit = named_unit(address)
    try:
        reached = bus.reach(settings)
    except (SbusError, OSError) as error:
        failure = error
        findings += bus.unreachable(error, address)
    else:
        findings += bus.judge_response(reached, unit)
        connections = bus.open_connections(reached)
        peer = reached.peer
    of_units, shown = units.check_bus_units(unit)
    findings += of_units
    service = {} if unit is None else shown.get(unit.name, {})
    if unit is not None:
        if failure is not None:
            findings += bus.status_faults(service.get("StatusText", ""), unit)
        findings += bus.check_listener(unit, shown, address, peer, failure)
    pid = units.main_process(service) or (None if peer is None else _bus_process(peer))
    findings += [*bus.check_errors(pid, unit), installation.check_packet(), installation.check_descriptors(pid, connections, unit)]
    return [*findings, installation.check_package(), installation.check_configuration(unit)]


def _store_findings(settings: Settings, scope: Literal["system", "user"]) -> list[Finding]:
    """Return the findings about the store; none if this bus is not meant to have one."""
    unit = _unit(scope, store.UNIT)
    main_file = default_main_file("store.toml", user_bus=scope == "user")
    if not store.is_used(unit, main_file):
        return []
    if units.is_missing(unit):
        return [units.without_package("sbus-store", unit, main_file)]
    findings = store.check_settings(scope)
    try:
        with settings.connect(bus.CHECK_SECONDS) as connection:
            state = parse_document(b"store/status", connection.call("store/status", timeout=bus.CHECK_SECONDS))
    except (SbusError, OSError) as error:
        return findings + store.not_running(unit, scope, error_text(error))
    return findings + store.judge_state(state)


def _unit(scope: Literal["system", "user"], name: str) -> units.Unit:
    """Return what systemd knows about the unit *name*, nothing if systemd cannot be asked."""
    shown = units.shown_units(scope, name)
    return {} if isinstance(shown, Finding) else shown.get(name, {})


def _link_findings(settings: Settings) -> list[Finding]:
    """Return the findings about the link to other hosts; none if this host has no configuration for it."""
    if not hosts.is_link_configured():
        return []
    unit = _unit("system", hosts.LINK_UNIT)
    if units.is_missing(unit):
        return [units.without_package("sbus-link", unit, default_main_file("link.toml"))]
    findings = hosts.check_link_settings()
    try:
        with settings.connect(bus.CHECK_SECONDS) as connection:
            return findings + hosts.judge_link(link_state(connection, settings.bus_address(), bus.CHECK_SECONDS))
    except (SbusError, OSError) as error:
        return findings + hosts.no_link(unit, error_text(error))


def lines(findings: list[Finding], *, legend: bool, color: bool, width: int | None) -> list[str]:
    """Return the findings as text, wrapped to *width*: result, check, reason, advice; with a legend also the totals."""
    indent = max(len(finding.check) for finding in findings)
    page: list[str] = []
    for finding in findings:
        word = finding.result.value.ljust(4)
        shown = typer.style(word, fg=_COLORS[finding.result]) if color else word
        first, *more = _wrapped(finding.reason, width, indent + 8)
        page.append(f"{shown}  {finding.check.ljust(indent)}  {first}")
        if finding.advice:
            advice, *rest = _wrapped(finding.advice, width, indent + 11)
            more += [f"-> {advice}", *(f"   {line}" for line in rest)]
        page += [f"{'':{indent + 8}}{line}" for line in more]
    if legend:
        failed, warned = (sum(finding.result is result for finding in findings) for result in (CheckResult.FAIL, CheckResult.WARN))
        page += ["", f"{human_plural(len(findings), 'check')}, {failed} failed, {human_plural(warned, 'warning')}."]
    return page


def _wrapped(text: str, width: int | None, indent: int) -> list[str]:
    """Return *text* in lines for a terminal of *width* columns, after *indent* columns; None: in one line."""
    return wrapped(visible(text), None if width is None else width - indent)


def _scope(address: str) -> Literal["system", "user"] | None:
    """Return the scope of the bus at *address*, None if it is neither the system bus nor the user bus."""
    if address == bus_address(scope="system"):
        return "system"
    try:
        return "user" if address == bus_address(scope="user") else None
    except SbusError:
        return None


def _bus_process(peer: int) -> int | None:
    """Return *peer*, None if it is the service manager that listens for the bus."""
    return peer if peer > 1 and command_name(peer) != "systemd" else None
