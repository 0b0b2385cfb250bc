"""Converts netlink messages to typed notices, without I/O. Source: rtnetlink(7).

pyroute2 decodes the messages; this module interprets them. It skips messages whose meaning differs from their type: messages of the
bridge family (a port that leaves its bridge is a DELLINK of that family, but the link remains), cached routes, proxy neighbours, and
neighbours that need no resolution (NOARP), as ip-neighbour(8) does.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyroute2.netlink import nlmsg_base, rtnl
from pyroute2.netlink.rtnl import ifaddrmsg, ifinfmsg, ndmsg, rt_proto, rt_type, rtmsg
from pyroute2.netlink.rtnl.iprsocket import MarshalRtnl

from sbus.protocol.errors import SbusError
from sbus_services.feeds.netlink.entries import Address, Entry, Hop, Link, Neighbour, Route

# It logs a traceback for a message that it cannot decode; DecodeError reports it in one line.
logging.getLogger("pyroute2").setLevel(logging.CRITICAL + 1)

_FAMILIES = {int(socket.AF_INET): "inet", int(socket.AF_INET6): "inet6"}
_TABLES = {253: "default", 254: "main", 255: "local"}
_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
_ADDRESS_FLAGS: dict[int, Mapping[int, str]] = {
    # One bit has two meanings, of which pyroute2 knows one.
    int(socket.AF_INET): {**ifaddrmsg.IFA_F_VALUES, 1: "IFA_F_SECONDARY"},
    int(socket.AF_INET6): {**ifaddrmsg.IFA_F_VALUES, 1: "IFA_F_TEMPORARY"},
}

_NLM_F_REPLACE = 0x100
_NLM_F_APPEND = 0x800
_RTM_F_CLONED = 0x200
_ROUTE_FLAGS = 0xFF
"""The low byte of rtm_flags is the state of the next hop, RTNH_F_*; the rest is about the message."""


class DecodeError(SbusError, ValueError):
    """A netlink message cannot be decoded."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The meaning of one message: *entry* exists, or was removed.

    ``is_partial``: more may have changed than the message contains, so the kernel's tables must be read.
    """

    entry: Entry
    gone: bool = False
    is_partial: bool = False


def parse_notices(data: bytes) -> Iterator[Notice]:
    """Yield the notices of one datagram in order. Messages without meaning for the feed are skipped.

    Raises:
        DecodeError: a message cannot be decoded; earlier ones have been yielded.
    """
    for message in MarshalRtnl().parse(data):
        error = message["header"].get("error")
        if error is not None:
            raise DecodeError(f"netlink message of type {message['header']['type']}: {error}")
        try:
            notice = _notice(message)
        except (KeyError, TypeError, AttributeError, ValueError) as wrong:
            raise DecodeError(f"netlink message of type {message['header']['type']}: {wrong!r}") from wrong
        if notice is not None:
            yield notice


def _notice(message: nlmsg_base) -> Notice | None:
    """Return the notice of one message, None if it has no meaning for the feed."""
    match message["header"]["type"]:
        case rtnl.RTM_NEWLINK | rtnl.RTM_DELLINK as kind:
            return None if message["family"] else Notice(_link(message), gone=kind == rtnl.RTM_DELLINK)
        case rtnl.RTM_NEWADDR | rtnl.RTM_DELADDR as kind:
            return Notice(_address(message), gone=kind == rtnl.RTM_DELADDR) if message["family"] in _FAMILIES else None
        case rtnl.RTM_NEWROUTE | rtnl.RTM_DELROUTE as kind:
            return _route_notice(message, gone=kind == rtnl.RTM_DELROUTE)
        case rtnl.RTM_NEWNEIGH | rtnl.RTM_DELNEIGH as kind:
            return _neighbour_notice(message, gone=kind == rtnl.RTM_DELNEIGH)
    return None


def _link(message: nlmsg_base) -> Link:
    """Return the link in a message."""
    name = message.get_attr("IFLA_IFNAME")
    info = message.get_attr("IFLA_LINKINFO")
    return Link(
        index=message["index"],
        # pyroute2 returns str for valid UTF-8, else bytes.
        name=name if isinstance(name, bytes) else name.encode(),
        state=(message.get_attr("IFLA_OPERSTATE") or "unknown").lower(),
        flags=_flag_names(message["flags"], ifinfmsg.IFF_VALUES, "IFF_"),
        mtu=message.get_attr("IFLA_MTU"),
        mac=message.get_attr("IFLA_ADDRESS"),
        kind=info.get_attr("IFLA_INFO_KIND") if info else None,
        master=message.get_attr("IFLA_MASTER"),
    )


def _address(message: nlmsg_base) -> Address:
    """Return the address in a message."""
    address = message.get_attr("IFA_ADDRESS")
    # IFA_LOCAL is this end and IFA_ADDRESS the other one; IPv6 sends only the latter for an address without a peer.
    local = message.get_attr("IFA_LOCAL") or address
    if local is None:
        raise ValueError("address message without an address")
    flags = message.get_attr("IFA_FLAGS")
    return Address(
        index=message["index"],
        family=_FAMILIES[message["family"]],
        local=local,
        peer=address if address not in (None, local) else None,
        prefix_length=message["prefixlen"],
        scope=_SCOPES.get(message["scope"], str(message["scope"])),
        flags=_flag_names(message["flags"] if flags is None else flags, _ADDRESS_FLAGS[message["family"]], "IFA_F_"),
        broadcast=message.get_attr("IFA_BROADCAST"),
        label=_optional_text(message.get_attr("IFA_LABEL")),
    )


def _route_notice(message: nlmsg_base, *, gone: bool) -> Notice | None:
    """Return the notice of a route message, None for caches and for families other than IP."""
    if message["family"] not in _FAMILIES or message["flags"] & _RTM_F_CLONED:
        return None
    flags = message["header"]["flags"]
    # The message does not contain the replaced route; an IPv6 route appended to another becomes part of it.
    is_partial = bool(flags & _NLM_F_REPLACE) or (message["family"] == socket.AF_INET6 and bool(flags & _NLM_F_APPEND))
    return Notice(_route(message), gone, is_partial and not gone)


def _route(message: nlmsg_base) -> Route:
    """Return the route in a message."""
    table = message.get_attr("RTA_TABLE") or message["table"]
    hops = tuple(Hop(hop["oif"] or None, _gateway(hop), hop["hops"] + 1) for hop in message.get_attr("RTA_MULTIPATH") or ())
    return Route(
        family=_FAMILIES[message["family"]],
        table=_TABLES.get(table, str(table)),
        destination=_prefix(message.get_attr("RTA_DST"), message["dst_len"]) or "default",
        source=_prefix(message.get_attr("RTA_SRC"), message["src_len"]),
        tos=message["tos"],
        metric=message.get_attr("RTA_PRIORITY") or 0,
        type=_named(rt_type, message["type"]),
        scope=_SCOPES.get(message["scope"], str(message["scope"])),
        protocol=_named(rt_proto, message["proto"]),
        index=message.get_attr("RTA_OIF"),
        gateway=_gateway(message),
        preferred_source=message.get_attr("RTA_PREFSRC"),
        hops=hops,
        flags=_flag_names(message["flags"] & _ROUTE_FLAGS, rtmsg.RTNH_F_VALUES, "RTNH_F_"),
    )


def _neighbour_notice(message: nlmsg_base, *, gone: bool) -> Notice | None:
    """Return the notice of a neighbour message; one that needs no resolution counts as removed."""
    address = message.get_attr("NDA_DST")
    if message["family"] not in _FAMILIES or address is None or message["flags"] & ndmsg.NTF_PROXY:
        return None
    state = message["state"]
    neighbour = Neighbour(
        index=message["ifindex"],
        family=_FAMILIES[message["family"]],
        address=address,
        mac=message.get_attr("NDA_LLADDR"),
        state=",".join(_flag_names(state, ndmsg.NUD_VALUES, "NUD_")) or "none",
        flags=_flag_names(message["flags"], ndmsg.NTF_VALUES, "NTF_"),
    )
    return Notice(neighbour, gone or state in (ndmsg.NUD_NONE, ndmsg.NUD_NOARP))


def _gateway(message: nlmsg_base) -> str | None:
    """Return the gateway of a route or hop; RTA_VIA is a gateway of the other family."""
    gateway: str | None = message.get_attr("RTA_GATEWAY")
    if gateway is None and (via := message.get_attr("RTA_VIA")):
        return str(via["addr"])
    return gateway


def _prefix(address: str | None, length: int) -> str | None:
    """Return ``address/length``, None for the prefix of length 0, which the kernel sends without an address."""
    return f"{address}/{length}" if address is not None else None


def _named(names: Mapping[int | str, int | str], value: int) -> str:
    """Return the name of *value*, or its digits if it has none."""
    return str(names.get(value, value))


def _flag_names(bits: int, names: Mapping[int, str], head: str) -> tuple[str, ...]:
    """Return the names of the set bits, lowest first, without their common *head*; a bit without a name in hexadecimal."""
    return tuple(
        names[bit].removeprefix(head).lower() if bit in names else hex(bit)
        for bit in (1 << position for position in range(bits.bit_length()))
        if bits & bit
    )


def _optional_text(value: bytes | str | None) -> str | None:
    """Return a label for a payload."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
