"""The program sbus-relay(8), also installed under the name of the original, msgbusd."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from sbusd.config.files import ConfigError, default_main_file
from sbusd.config.loading import load_settings
from sbusd.config.relay import RelaySettings, WebAddress
from sbusd.config.users import ChargedUsers
from sbusd.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app, require_only
from sbusd.protocol.envelope import MAX_TWIN
from sbusd.protocol.errors import SbusError
from sbusd.relay.http.credentials import check_identity
from sbusd.standard_error import fail
from sbusd.standard_output import print_line
from sbusd.systemd.event_loop import on_ending_signal, run_service
from sbusd.systemd.service_user import acting_as_user_of, valid
from sbusd.systemd.signals import exit_on_ending_signals

NOT_INSTALLED = "{name} is not installed; install it with: pip install 'sbusd[relay]'"

app = program_app("Relay requests between hosts over Redis and HTTP (Reliable Message Bus).", "sbus-relay")


@app.command(cls=PlainCommand)
def relay(
    context: typer.Context,
    *,
    twin: Annotated[int | None, typer.Option(metavar="ID", min=1, max=MAX_TWIN, help="Number of this host.")] = None,
    redis: Annotated[str | None, typer.Option(metavar="REDIS", help="Redis server: HOST:PORT, socket path or URL.")] = None,
    substrate: Annotated[str | None, typer.Option(metavar="URL", help="GraphQL service that looks up addresses of hosts.")] = None,
    network: Annotated[str | None, typer.Option(metavar="NAME", help="Public network to look up hosts in: dev, test or main.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log each delivery attempt to standard error.")] = False,
    config: Annotated[Path | None, config_option("relay.toml")] = None,
    check: CheckOption = False,
    _version: VersionOption = False,
) -> None:
    """Relay requests between hosts over Redis and HTTP, see sbus-relay(8)."""
    if network not in {None, "dev", "test", "main"}:
        raise typer.BadParameter("--network must be dev, test or main")
    if check:
        require_only(context, "--check", "check", "config", "twin", "redis", "substrate", "network")
    else:
        exit_on_ending_signals()
    given = {"twin": twin, "redis": redis, "substrate": substrate, "network": network}
    try:
        main_file = config or default_main_file("relay.toml")
        # A check of root reads the configuration and the keys as the service does.
        with acting_as_user_of("sbus-relay.service", main_file) if check else contextlib.nullcontext("") as reader:
            settings = _settings(main_file, config, {name: value for name, value in given.items() if value is not None})
            _run(settings, check=check, debug=debug, reader=reader)
    except ConfigError as wrong:
        fail("sbus-relay", str(wrong), os.EX_CONFIG)
    except SbusError as wrong:
        fail("sbus-relay", str(wrong), os.EX_CONFIG if isinstance(wrong, ValueError) else 1)
    except OSError as wrong:
        fail("sbus-relay", f"cannot listen on {settings.listen or 'the default address'}: {wrong.strerror or wrong}")


def main() -> None:
    """Run the program. Status: 0 after SIGTERM or SIGINT, 1 after an error, 2 for wrong options, 78 if the configuration must change."""
    app(prog_name="sbus-relay")


def _settings(main_file: Path, config: Path | None, given: dict[str, Any]) -> RelaySettings:
    """Return the settings of the files, overridden by the *given* options. Raises ConfigError."""
    settings = load_settings(main_file, RelaySettings, required=config is not None)
    if "substrate" in given:
        # Options are validated like settings of the file.
        try:
            given["substrate"] = WebAddress().parse(given["substrate"])
        except ValueError as wrong:
            raise typer.BadParameter(f"--substrate: {wrong}") from None
    settings = dataclasses.replace(settings, **given)
    if not settings.twin:
        raise ConfigError(main_file, "twin", "not set; write the number of this host, or use --twin ID")
    if any(peer.twin == settings.twin for peer in settings.peers):
        raise ConfigError(main_file, "peers", f"twin {settings.twin} is this host; list only other hosts")
    return settings


def _run(settings: RelaySettings, *, check: bool, debug: bool, reader: str) -> None:
    """Relay until SIGTERM or SIGINT, or only *check* the settings, which were read as the user *reader*."""
    try:
        import aiohttp  # noqa: F401, PLC0415 - only to report in one line that it is missing
        import redis  # noqa: F401, PLC0415
    except ModuleNotFoundError as missing:
        fail("sbus-relay", NOT_INSTALLED.format(name=missing.name), os.EX_CONFIG)
    from sbusd.relay.sender import print_attempt  # noqa: PLC0415 - behind the check
    from sbusd.relay.service import Relay  # noqa: PLC0415
    from sbusd.systemd.log_records import LimitedLog  # noqa: PLC0415
    from sbusd.systemd.service_manager import ServiceManager  # noqa: PLC0415

    manager, charged = ServiceManager.of_environment(), ChargedUsers()
    observer = print_attempt if debug else lambda _attempt: None

    async def run() -> None:
        made = Relay(
            settings.twin,
            settings,
            LimitedLog("sbus-relay"),
            ready=lambda listen: manager.notify(f"READY=1\nSTATUS=listening on {listen}"),
            alive=manager.alive,
            observer=observer,
            charged=charged.of,
        )
        if check:
            if settings.tls.is_on:
                check_identity(settings.tls, settings.twin, is_start=False)
            print_line("sbus-relay", valid(reader))
            return
        charged.start()
        task = asyncio.ensure_future(made.run())
        on_ending_signal(task.cancel)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, made.reload)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        manager.stopping()

    try:
        run_service(run())
    finally:
        charged.close()
        manager.close()


if __name__ == "__main__":
    main()
