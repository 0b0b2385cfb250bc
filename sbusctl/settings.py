"""The global options: the bus, and the output format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from sbus import Bus, bus_address
from sbus.bus_socket import parse_target
from sbus.protocol.errors import SbusError
from sbus_programs.helptext import UsageError, VersionOption
from sbusctl.errors import error_text
from sbusctl.output import JsonStyle, is_terminal

TIMEOUT_SECONDS = 30.0
"""Time limit for responses of the bus: systemd may have to start it first."""


MAX_SECONDS = 31_536_000
"""The greatest number of seconds of an option, a year: more is a mistake, and infinity does not fit into the clocks of the system."""

JSON_OPTION = "--json"
"""The option whose value can be omitted; the parsers of command lines do not know such options, see :func:`with_json_flag`."""


@dataclass(slots=True)
class Settings:
    """Values of the global options."""

    scope: Literal["system", "user"] | None = None
    address: str | None = None
    json: JsonStyle = JsonStyle.OFF
    legend: bool = True
    pager: bool = True

    def connect(self, timeout: float = TIMEOUT_SECONDS, *, pace: bool = False, reconnect: bool = False) -> Bus:
        """Return a connection to the selected bus, with *pace* a paced one. Raises SbusError if there is none."""
        return Bus.connect(self.address, scope=self.scope, timeout=timeout, pace=pace, reconnect=reconnect)

    def bus_address(self) -> str:
        """Return the address of the selected bus, in the form of ``--address``. Raises SbusError if it is unknown."""
        return bus_address(self.address, scope=self.scope)


def settings_of(context: typer.Context) -> Settings:
    """Return the settings of this invocation, created on first use."""
    root = context.find_root()
    if not isinstance(root.obj, Settings):
        root.obj = Settings()
    return root.obj


def forbid_json(context: typer.Context, command: str) -> None:
    """Raise UsageError if JSON is requested of *command*, which prints none."""
    if settings_of(context).json is not JsonStyle.OFF:
        raise UsageError(f"{JSON_OPTION} is not an option of {command}: it prints no JSON")


def forbid_bus(context: typer.Context, command: str) -> None:
    """Raise UsageError if a bus is selected for *command*, which does not connect to one."""
    settings = settings_of(context)
    if (settings.scope, settings.address) != (None, None):
        name = "--address" if settings.scope is None else f"--{settings.scope}"
        raise UsageError(f"{name} is not an option of {command}: it does not connect to a bus")


def with_json_flag(arguments: Sequence[str]) -> list[str]:
    """Return the command line *arguments* with ``-j`` for each ``--json`` without a value. The value is never the next word."""
    found = list(arguments)
    end = found.index("--") if "--" in found else len(found)
    return ["-j" if word == JSON_OPTION else word for word in found[:end]] + found[end:]


def _choose_bus(context: typer.Context, parameter: typer.CallbackParam, value: bool | str | None) -> None:
    """Select the bus. Raises UsageError if another one was selected before, or the address is invalid."""
    if value is None or value is False or context.resilient_parsing:
        return
    settings = settings_of(context)
    scope: Literal["system", "user"] | None = None
    if isinstance(value, bool):
        scope = "user" if "--user" in parameter.opts else "system"
    address = value if isinstance(value, str) else None
    if (settings.scope, settings.address) not in ((None, None), (scope, address)):
        raise UsageError("--system, --user and --address are mutually exclusive")
    if address is not None:
        try:
            parse_target(address, reconnect=False)
        except SbusError as error:
            raise UsageError(error_text(error)) from None
    settings.scope, settings.address = scope, address


def _choose_json(context: typer.Context, value: str | None) -> None:
    """Set the style of JSON."""
    if value is not None and not context.resilient_parsing:
        settings_of(context).json = JsonStyle(value)


def _choose_short_json(context: typer.Context, value: bool) -> None:
    """Set the style of JSON that suits standard output."""
    if value and not context.resilient_parsing:
        settings_of(context).json = JsonStyle.PRETTY if is_terminal() else JsonStyle.SHORT


def _drop_legend(context: typer.Context, value: bool) -> None:
    """Disable headings."""
    if value and not context.resilient_parsing:
        settings_of(context).legend = False


def _drop_pager(context: typer.Context, value: bool) -> None:
    """Disable the pager."""
    if value and not context.resilient_parsing:
        settings_of(context).pager = False


SystemOption = Annotated[
    bool,
    typer.Option("--system", callback=_choose_bus, expose_value=False, help="Connect to the system bus (default without SBUS_ADDRESS)."),
]
UserOption = Annotated[
    bool, typer.Option("--user", callback=_choose_bus, expose_value=False, help="Connect to the bus of the calling user.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        metavar="ADDRESS",
        callback=_choose_bus,
        expose_value=False,
        help="Connect to the bus at this address, such as a path.",
    ),
]
JsonOption = Annotated[
    JsonStyle | None,
    typer.Option(
        "--json",
        metavar="[=STYLE]",
        callback=_choose_json,
        expose_value=False,
        help="Print JSON. STYLE is short (one line), pretty (indented) or off; default: same as -j.",
    ),
]
ShortJsonOption = Annotated[
    bool,
    typer.Option("-j", callback=_choose_short_json, expose_value=False, help="Same as --json=pretty on a terminal, else --json=short."),
]
LegendOption = Annotated[
    bool, typer.Option("--no-legend", callback=_drop_legend, expose_value=False, help="Do not print headings and totals.")
]
PagerOption = Annotated[
    bool, typer.Option("--no-pager", callback=_drop_pager, expose_value=False, help="Do not pipe long output into a pager.")
]


def common_options(
    *,
    _system: SystemOption = False,
    _user: UserOption = False,
    _address: AddressOption = None,
    _json: JsonOption = None,
    _short_json: ShortJsonOption = False,
    _no_legend: LegendOption = False,
    _no_pager: PagerOption = False,
    version: VersionOption = False,
) -> None:
    """Publish, subscribe, call services and inspect the local message bus, sbusd.

    Global options can precede or follow the command. See sbusctl(1).
    """
