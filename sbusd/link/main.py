"""The program sbus-link(8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Annotated

from sbusd.config.files import default_main_file
from sbusd.config.link import LinkSettings
from sbusd.config.loading import load_settings
from sbusd.config.users import ChargedUsers
from sbusd.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app
from sbusd.link import log_messages
from sbusd.link.administration import NETWORK_UNAVAILABLE, Event
from sbusd.link.network.direct import DirectNetwork
from sbusd.link.network.nats import NatsNetwork
from sbusd.link.network.streams import Writable
from sbusd.link.rules import Rules
from sbusd.link.service import Link
from sbusd.link.settings import make_network, rules_of
from sbusd.program import check_configuration, failing_with_status
from sbusd.protocol.errors import SbusError
from sbusd.standard_error import fail
from sbusd.systemd.event_loop import on_ending_signal, run_service
from sbusd.systemd.log_records import LimitedLog
from sbusd.systemd.service_manager import ServiceManager
from sbusd.systemd.signals import exit_on_ending_signals

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

    def load(*, is_start: bool) -> tuple[LinkSettings, Rules]:
        settings, rules = _load(main_file, config)
        make_network(settings, main_file, _writable, _ignore).check(is_start=is_start)  # at boot, the clock can be wrong
        return settings, rules

    with failing_with_status("sbus-link", ValueError):
        if check:
            check_configuration("sbus-link", main_file, lambda: load(is_start=False))
            return
        exit_on_ending_signals()
        settings, rules = load(is_start=True)
        run_service(_run(settings, rules, main_file))


def main() -> None:
    """Run the program. Status: 0 after SIGTERM or SIGINT, 1 after an error, 2 for wrong options, 78 if the configuration must change."""
    app(prog_name="sbus-link")


def _load(main_file: Path, config: Path | None) -> tuple[LinkSettings, Rules]:
    """Return the settings and the rules. Raises ConfigError."""
    settings = load_settings(main_file, LinkSettings, required=config is not None)
    return settings, rules_of(settings, main_file, os.geteuid())


async def _writable() -> None:
    """Return at once: a check connects to nothing."""


def _ignore(_reason: str) -> None:
    """Do not report: a check connects to nothing."""


async def _run(settings: LinkSettings, rules: Rules, main_file: Path) -> None:
    """Link until SIGTERM or SIGINT. Raises SbusError."""
    log, manager = LimitedLog("sbus-link"), ServiceManager.of_environment()

    def report(reason: str) -> None:
        log.record_limited(log_messages.PROBLEM, reason.partition(": ")[0], reason=reason)

    def network(writable: Writable) -> NatsNetwork | DirectNetwork:
        return make_network(settings, main_file, writable, report)

    users = ChargedUsers()
    users.start()
    made = Link(
        rules,
        settings.bus,
        network,
        report=report,
        transport=settings.transport,
        certificate=Path(settings.tls.certificate) if settings.tls.is_on else None,
        state_seconds=settings.state_interval,
        alive=manager.alive,
        note=lambda event: _log_event(log, event),
        charged=users.of,
    )
    task = asyncio.ensure_future(made.run())
    on_ending_signal(task.cancel)
    log.record(log_messages.STARTED, host=rules.host, realm=rules.realm, transport=settings.transport)
    manager.ready("linking")
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    except BaseExceptionGroup as errors:
        first = _first(errors)
        if isinstance(first, SbusError):
            raise first from None
        if isinstance(first, OSError):
            fail("sbus-link", f"cannot listen on {settings.listen}: {first.strerror or first}")
        log.record(log_messages.FAULT, reason=f"{type(first).__name__}: {first}")
        raise
    finally:
        users.close()
        manager.stopping()
        manager.close()
    log.record(log_messages.STOPPED, host=rules.host)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first of *errors* that is not a group."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


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
