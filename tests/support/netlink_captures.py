"""Captured netlink datagrams: tests/unit/sbus_services/feeds/data/*.hex; the file contains the commands that caused them."""

from __future__ import annotations

from pathlib import Path

from sbus_services.feeds.netlink.notices import Notice, parse_notices

_FOLDER = Path(__file__).parents[1] / "unit" / "sbus_services" / "feeds" / "data"


def captured(name: str = "changes.hex") -> dict[str, list[bytes]]:
    """Return the datagrams of a capture by command, in the order of the file."""
    groups: dict[str, list[bytes]] = {}
    command = ""
    for line in (_FOLDER / name).read_text().splitlines():
        if line.startswith("# $ "):
            command = line.removeprefix("# $ ")
            groups[command] = []
        elif not line.startswith("#"):
            groups[command].append(bytes.fromhex(line))
    return groups


def notices_of(command: str) -> list[Notice]:
    """Return the notices in the captured datagrams of *command*."""
    return [notice for datagram in captured()[command] for notice in parse_notices(datagram)]
