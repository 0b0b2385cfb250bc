"""The program sbus-link(8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Annotated

from sbus_programs.config.files import default_main_file
from sbus_programs.config.link import LinkSettings
from sbus_programs.config.loading import load_settings
from sbus_programs.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app
from sbus_programs.program import run_configured
from sbus_programs.running_service import RunningService, serve
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.link import log_messages
from sbus_services.link.administration import NETWORK_UNAVAILABLE, Event
from sbus_services.link.network.direct import DirectNetwork
from sbus_services.link.network.nats import NatsNetwork
from sbus_services.link.network.streams import Writable
from sbus_services.link.rules import Rules
from sbus_services.link.service import Link
from sbus_services.link.settings import make_network, rules_of

app = program_app("Link buses of several hosts: publish and subscribe between them.", "sbus-link")


@app.command(cls=PlainCommand)
def link(
    *,
    config: Annotated[Path | None, config_option("link.toml")] = None,
    check: CheckOption = False,
    _version: VersionOption = False,
) -> None:
    """Link the bus of this host with those of other hosts, see sbus-link(8)."""
    main_file = config or default_main_file("link.toml")

    def load() -> tuple[LinkSettings, Rules]:
        settings = load_settings(main_file, LinkSettings, required=config is not None)
        return settings, rules_of(settings, main_file, os.geteuid())

    def check_network(loaded: tuple[LinkSettings, Rules], *, is_start: bool = False) -> None:
        make_network(loaded[0], main_file, _writable, _ignore).check(is_start=is_start)  # at boot, the clock can be wrong

    def run(loaded: tuple[LinkSettings, Rules]) -> None:
        check_network(loaded, is_start=True)
        settings, rules = loaded
        doing = f"cannot listen on {settings.listen}"
        serve("sbus-link", lambda service: _link(service, settings, rules, main_file), fault=log_messages.FAULT, doing=doing)

    run_configured("sbus-link", main_file, load, run, is_check=check, check=check_network, permanent=(ValueError,))


def main() -> None:
    """Run the program. Status: 0 after SIGTERM or SIGINT, 1 after an error, 2 for wrong options, 78 if the configuration must change."""
    app(prog_name="sbus-link")


async def _writable() -> None:
    """Return at once: a check connects to nothing."""


def _ignore(_reason: str) -> None:
    """Do not report: a check connects to nothing."""


async def _link(service: RunningService, settings: LinkSettings, rules: Rules, main_file: Path) -> None:
    """Link until cancelled."""
    log = service.log

    def report(reason: str) -> None:
        log.record_limited(log_messages.PROBLEM, reason.partition(": ")[0], reason=reason)

    def network(writable: Writable) -> NatsNetwork | DirectNetwork:
        return make_network(settings, main_file, writable, report)

    made = Link(
        rules,
        settings.bus,
        network,
        report=report,
        transport=settings.transport,
        certificate=Path(settings.tls.certificate) if settings.tls.is_on else None,
        state_seconds=settings.state_interval,
        alive=service.alive,
        note=lambda event: _log_event(log, event),
        charged=service.charged.of,
    )
    log.record(log_messages.STARTED, host=rules.host, realm=rules.realm, transport=settings.transport)
    service.ready("linking")
    with contextlib.suppress(asyncio.CancelledError):
        await made.run()
    log.record(log_messages.STOPPED, host=rules.host)


def _log_event(log: LimitedLog, event: Event) -> None:
    """Log an event that the link publishes."""
    key, words = event
    if key == "link/network":
        if words["event"] == "up":
            log.record(log_messages.NETWORK_UP, server=str(words["server"]) or "direct connections")
        else:
            log.record_limited(log_messages.NETWORK_DOWN, "network", reason=str(words["reason"]))
    elif key.startswith("link/host/"):
        if words["event"] == "up":
            log.record_limited(log_messages.HOST_UP, key, host=str(words["host"]))
        elif words["reason"] != NETWORK_UNAVAILABLE:  # one record about the network is enough
            log.record_limited(log_messages.HOST_DOWN, key, host=str(words["host"]))
    else:
        lost = str(words["count"] or "an unknown number of")
        log.record_limited(log_messages.LOST, key, host=str(words["host"] or "unknown"), lost=lost)


if __name__ == "__main__":
    main()
