"""``sbusctl doctor``: checks the installation."""

from __future__ import annotations

import os
from typing import Literal

import typer

from sbusd.client import bus_address
from sbusd.ctl.checks import CheckResult, Finding, bus, installation, link
from sbusd.ctl.commands.link import link_state
from sbusd.ctl.errors import error_text
from sbusd.ctl.formatting import human_plural
from sbusd.ctl.output import JsonStyle, is_terminal, visible, write_json, write_page
from sbusd.ctl.processes import command_name
from sbusd.ctl.settings import Settings, settings_of
from sbusd.protocol.errors import SbusError

_COLORS = {CheckResult.OK: "green", CheckResult.WARN: "yellow", CheckResult.FAIL: "red", CheckResult.SKIP: "bright_black"}


def doctor_command(context: typer.Context) -> None:
    """Check the installation, and suggest fixes.

    The exit status is 1 if a check fails.
    """
    settings = settings_of(context)
    findings = examine(settings)
    failed = sum(finding.result is CheckResult.FAIL for finding in findings)
    if settings.json is JsonStyle.OFF:
        write_page(lines(findings, legend=settings.legend, color=is_terminal() and "NO_COLOR" not in os.environ), pager=settings.pager)
    else:
        checks = [{"check": each.check, "result": each.result.value, "reason": each.reason, "advice": each.advice} for each in findings]
        write_json({"checks": checks, "failed": failed}, settings.json)
    if failed:
        raise typer.Exit(1)


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
    pid: int | None = None
    connections: int | None = None
    try:
        reached = bus.reach(settings)
    except (SbusError, OSError) as error:
        findings += bus.unreachable(error, address)
    else:
        findings += bus.judge_response(reached)
        connections = bus.open_connections(reached)
        pid = _bus_process(reached.peer)
    of_units, main_pid = installation.check_units(scope)
    findings += [*of_units, installation.check_packet(), installation.check_descriptors(main_pid or pid, connections)]
    findings += [installation.check_package(), installation.check_configuration(scope)]
    return findings + _link_findings(settings) if scope == "system" and link.is_configured() else findings


def _link_findings(settings: Settings) -> list[Finding]:
    """Return the findings about the link to other hosts."""
    findings = link.check_settings()
    try:
        with settings.connect(bus.PATIENCE_SECONDS) as connection:
            return findings + link.judge_state(link_state(connection, bus.PATIENCE_SECONDS))
    except (SbusError, OSError) as error:
        return findings + link.no_link(error_text(error))


def lines(findings: list[Finding], *, legend: bool, color: bool) -> list[str]:
    """Return the findings as text: result, check, reason, advice; with a legend also the totals."""
    width = max(len(finding.check) for finding in findings)
    page: list[str] = []
    for finding in findings:
        word = finding.result.value.ljust(4)
        shown = typer.style(word, fg=_COLORS[finding.result]) if color else word
        page.append(f"{shown}  {finding.check.ljust(width)}  {visible(finding.reason)}")
        if finding.advice:
            page.append(f"{'':4}  {'':{width}}  -> {visible(finding.advice)}")
    if legend:
        failed, warned = (sum(finding.result is result for finding in findings) for result in (CheckResult.FAIL, CheckResult.WARN))
        page += ["", f"{human_plural(len(findings), 'check')}, {failed} failed, {human_plural(warned, 'warning')}."]
    return page


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
