"""The program sbus-relay(8), also installed under the name of the original, msgbusd."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from sbus.protocol.envelope import MAX_TWIN
from sbus_programs.config.files import ConfigError, default_main_file
from sbus_programs.config.loading import load_settings
from sbus_programs.config.relay import RelaySettings, WebAddress
from sbus_programs.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app, require_only
from sbus_programs.program import run_configured
from sbus_programs.running_service import RunningService, serve
from sbus_programs.standard_error import fail
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.http.credentials import check_identity

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
    given = {"twin": twin, "redis": redis, "substrate": substrate, "network": network}
    main_file = config or default_main_file("relay.toml")
    run_configured(
        "sbus-relay",
        main_file,
        lambda: _settings(main_file, config, {name: value for name, value in given.items() if value is not None}),
        lambda settings: _relay(settings, debug=debug),
        is_check=check,
        check=_check,
        permanent=(ValueError,),
    )


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


def _require_libraries() -> None:
    """Exit with one line if a library is missing."""
    try:
        import aiohttp  # noqa: F401, PLC0415
        import redis  # noqa: F401, PLC0415
    except ModuleNotFoundError as missing:
        fail("sbus-relay", NOT_INSTALLED.format(name=missing.name), os.EX_CONFIG)


def _check(settings: RelaySettings) -> None:
    """Check what only a start finds. Raises ConfigError, InvalidRedisError."""
    _require_libraries()
    from sbus_services.relay.service import Relay  # noqa: PLC0415 - behind the check

    Relay(settings.twin, settings, LimitedLog("sbus-relay"))
    if settings.tls.is_on:
        check_identity(settings.tls, settings.twin, is_start=False)


def _relay(settings: RelaySettings, *, debug: bool) -> None:
    """Relay until a signal arrives."""
    _require_libraries()
    from sbus_services.relay.sender import print_attempt  # noqa: PLC0415 - behind the check
    from sbus_services.relay.service import Relay  # noqa: PLC0415

    async def relay(service: RunningService) -> None:
        made = Relay(
            settings.twin,
            settings,
            service.log,
            ready=lambda listen: service.ready(f"listening on {listen}"),
            alive=service.alive,
            observer=print_attempt if debug else lambda _attempt: None,
            charged=service.charged.of,
        )
        # Not a reload of the service: only the files of certificates and keys are compared earlier.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, made.reload)
        await made.run()

    serve("sbus-relay", relay, doing=f"cannot listen on {settings.listen or 'the default address'}")


if __name__ == "__main__":
    main()
