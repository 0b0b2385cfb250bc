"""The program sbus-link(8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from sbusd.config.files import ConfigError, default_main_file
from sbusd.config.link import LinkSettings
from sbusd.config.loading import load_settings
from sbusd.config.subordinate_ids import ChargedUsers
from sbusd.helptext import PlainCommand, VersionOption
from sbusd.link import log_messages
from sbusd.link.events import NETWORK_UNAVAILABLE, Event
from sbusd.link.network.direct import DirectNetwork
from sbusd.link.network.nats import NatsNetwork
from sbusd.link.network.stall import Writable
from sbusd.link.rules import Rules
from sbusd.link.service import Link
from sbusd.link.settings import make_network, rules_of
from sbusd.protocol.errors import SbusError
from sbusd.standard_error import fail
from sbusd.standard_output import print_line
from sbusd.systemd.event_loop import on_ending_signal, run_service
from sbusd.systemd.limited_log import LimitedLog
from sbusd.systemd.service_manager import ServiceManager
from sbusd.systemd.service_user import acting_as_user_of, valid
from sbusd.systemd.signals import exit_on_ending_signals

app = typer.Typer(
    help="Link buses of several hosts: publish and subscribe between them.",
    epilog="See sbus-link(8).",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command(cls=PlainCommand)
def link(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", "-C", metavar="FILE", help="Configuration file (default: /etc/sbus/link.toml).")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the configuration and exit.")] = False,
    _version: VersionOption = False,
) -> None:
    """Link the bus of this host with those of other hosts, see sbus-link(8)."""
    main_file = config or default_main_file("link.toml")
    try:
        if check:
            with acting_as_user_of("sbus-link.service", main_file) as reader:
                settings, _ = _load(main_file, config)
                make_network(settings, main_file, _writable, _ignore).check(is_start=False)
            print_line("sbus-link", valid(reader))
            return
        exit_on_ending_signals()
        settings, rules = _load(main_file, config)
        make_network(settings, main_file, _writable, _ignore).check(is_start=True)  # at boot, the clock can be wrong
        run_service(_run(settings, rules, main_file))
    except ConfigError as wrong:
        fail("sbus-link", str(wrong), os.EX_CONFIG)
    except SbusError as wrong:
        fail("sbus-link", str(wrong), os.EX_CONFIG if isinstance(wrong, ValueError) else 1)


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
