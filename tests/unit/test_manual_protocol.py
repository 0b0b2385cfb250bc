"""The tables and lists of sbus-protocol(7), and the limits of sbus(7), are those of the code."""

from __future__ import annotations

import re

from sbus.bus_socket import ADDRESS_VARIABLE, SYSTEM_ADDRESS
from sbus.protocol import controls, vouching
from sbus.protocol.errors import ErrorCode
from sbus.protocol.keys import KeySpace, pattern_matches
from sbus.protocol.packets import MAX_BATCH_BYTES, MAX_PACKET_BYTES, control_packet, publish_packet, subscribe_packet, unsubscribe_packet
from sbus_programs.config.quantities import NO_BOUND, show_size
from sbus_programs.config.settings import LimitSettings, QuotaSettings
from sbusd.broker import connection_settings, control_messages, events
from sbusd.broker.log import LogCounters
from sbusd.dataplane import contract
from sbusd.dataplane.counters import ConnectionCounters, SwitchCounters
from tests.support.manual import section, source, sources

PAGE = "sbus-protocol.7"


def _rows(number: int) -> list[list[str]]:
    """Return the rows of the table of a section, without its head and without macros."""
    lines = re.findall(r"^\.It (.+)$", section(PAGE, str(number)).split(".Bl -column")[1].split("\n.El")[0], re.MULTILINE)
    return [[re.sub(r"^(?:Li|Er|Cm) ", "", cell) for cell in line.split(" Ta ")] for line in lines[1:]]


def _names(head: str) -> set[str]:
    """Return what the heads of the items between *head* and the end of their list name, in section 6."""
    items = section(PAGE, "6").split(head)[1].split("\n.El")[0]
    return {name for line in re.findall(r"^\.It Cm (.+)$", items, re.MULTILINE) for name in line.split(" , ")}


def test_the_example_bytes_equal_those_of_the_code() -> None:
    lines = re.findall(r"^((?:[0-9a-f]{2} )+) +(\S.*)$", section(PAGE, "2"), re.MULTILINE)
    shown = [bytes.fromhex(digits) for digits, _ in lines]
    assert shown == [subscribe_packet(b"a/*"), publish_packet(b"a/b", b"hi"), unsubscribe_packet(b"a/*"), control_packet(b"echo/off")]
    assert [text.replace("\\e0", "\0").encode() for _, text in lines] == shown


def test_the_table_of_matches_is_the_codes() -> None:
    rows = _rows(3)
    assert len(rows) > 10
    assert {verdict for _, _, verdict in rows} == {"yes", "no"}
    for pattern, key, verdict in rows:
        assert pattern_matches(pattern.encode(), key.encode()) is (verdict == "yes"), (pattern, key)


def test_the_reserved_namespaces_are_the_codes() -> None:
    shown = [(head.encode(), who != "no client") for head, who, _ in _rows(5)]
    assert shown == [(namespace.head, namespace.public) for namespace in KeySpace().namespaces]


def test_the_control_messages_are_the_codes() -> None:
    constants = {value for name, value in vars(controls).items() if name.isupper() and name != "RESERVED_HEAD"} | contract.MODES.keys()
    documented = re.findall(r"^\.It Li (\S+)", section(PAGE, "6"), re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert {name.encode() for name in documented} == constants


def test_the_features_are_the_codes() -> None:
    item = section(PAGE, "6").split(".It Li !/bus/features\n")[1].split("\n.It ")[0]
    assert tuple(re.findall(r"^\.Ql (\w+)", item, re.MULTILINE)) == control_messages.FEATURES


def test_the_counters_are_the_codes() -> None:
    described = {"id", "name", "pid", "uid", "gid", "unit", "slice", "user_unit", "since", "inode"}
    described |= {"subscriptions", "soft", "hard", "order", "sender", "batch", "tap"}
    described |= {"pace", "blocked_ms", "blocked_by_count", "blocked_by", "blocked_others_ms", "blocks_count", "blocks"}
    assert _names("A connection is an object with\n") == described | set(ConnectionCounters._fields)
    assert _names(".Cm counters\nof the bus are\n") == set(SwitchCounters._fields)
    records = section(PAGE, "6").split(".Cm log\nhas")[1].split(".Ss ")[0]
    assert tuple(re.findall(r"^\.Cm (\w+)", records, re.MULTILINE)) == LogCounters._fields


def test_the_bounds_are_the_defaults_of_the_code() -> None:
    limits = LimitSettings()
    assert {name: default for name, default, _ in _rows(7)} == {
        "queue_packets": "none" if limits.queue_packets == NO_BOUND else str(limits.queue_packets),
        "queue_bytes": show_size(limits.queue_bytes),
        "key_bytes": show_size(limits.key_bytes),
        "batch_packets": str(limits.batch_packets),
        "low_water": str(limits.low_water),
        "block_timeout": f"{limits.block_timeout:g}s",
        "progress_timeout": f"{limits.progress_timeout:g}s",
        "pace_limit": f"{limits.pace_limit * 1e3:g}ms",
        "turn_time": f"{limits.turn_time * 1e6:g}us",
        "queued_memory": show_size(limits.queued_memory),
    }


def test_the_limits_are_the_codes() -> None:
    assert [limit for limit, _ in _rows(9)] == [
        f"{MAX_PACKET_BYTES} bytes",
        f"{MAX_BATCH_BYTES} bytes",
        f"{connection_settings.MAX_TOKEN_BYTES} bytes",
        f"{vouching.MAX_ORIGIN_BYTES} bytes",
        str(vouching.MAX_LOST_PATTERNS),
        f"{events.MAX_DENIED_KEY_BYTES} bytes",
        str(contract.MISSED),
        str(contract.RANDOM_PACKETS),
        f"{contract.UNREAD_BYTES >> 20} MiB",
        f"{contract.UNREAD_BYTES >> 20} MiB",
    ]


def test_the_errors_are_the_codes() -> None:
    rows = _rows(8)
    assert {fate for _, fate, _ in rows} == {"ends", "stays"}
    assert {(code, fate == "ends") for code, fate, _ in rows} == {(code.name, code.disconnects) for code in ErrorCode}
    assert len(rows) == len(ErrorCode)


def test_the_errors_that_are_sent_are_those_that_the_code_names() -> None:
    bus = [
        path
        for path in sources()
        if path.parent.name in {"dataplane", "broker", "restart", "daemon", "protocol"} and path.name != "errors.py"
    ]
    named = {code for path in bus for code in re.findall(r"\bErrorCode\.([A-Z]+)\b", path.read_text("utf-8"))}
    assert {code for code, _, meaning in _rows(8) if meaning != "not sent by this version"} == named


def test_the_limits_of_the_overview_are_the_defaults_of_the_code() -> None:
    limits, quotas = LimitSettings(), QuotaSettings()
    shown = re.findall(r"^\.It (\d+)(?: (bytes|MiB))?$", section("sbus.7", "LIMITS"), re.MULTILINE)
    assert [int(number) << (20 if unit == "MiB" else 0) for number, unit in shown] == [
        *(MAX_PACKET_BYTES, limits.key_bytes, limits.queue_bytes, quotas.queued_bytes, limits.queued_memory),
        *(quotas.connections, quotas.subscriptions, quotas.control_rate),
    ]


def test_the_overview_names_the_addresses_that_clients_use() -> None:
    assert f".It Pa {SYSTEM_ADDRESS}\n" in source("sbus.7")
    assert f".It Ev {ADDRESS_VARIABLE}\n" in source("sbus.7")
