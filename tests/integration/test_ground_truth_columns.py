"""The columns of the tables that the ground truth compares, see test_ground_truth.py: a new column needs a check there."""

from __future__ import annotations

from sbus_archive.tables.schema import TABLES

_COMPARED = {
    "traffic": "minute host prefix uid messages bytes recipients queued discarded undeliverable",
    "users": "host uid unit connections messages bytes recipients requests replies subscriptions denials lost",
    "flows": "host from_uid from_unit prefix to_uid to_unit deliveries bytes",
    "calls": (
        "host cmd caller_uid caller_unit callee_uid callee_unit calls answered errors timeouts unanswered undelivered"
        " latency_p50_us latency_p90_us latency_p99_us latency_max_us latencies"
    ),
    "losses": "minute host cause uid unit prefix reason events count duration_us",
    "security": "host class code reason uid unit key events first last",
    "disconnects": "host uid unit code reason disconnects abandoned",
    "relay": "host twin cmd outcome attempts retries calls longest_us",
    "links": (
        "minute host realm link peer alive_us messages bytes lost unknown_losses duplicates rejected disconnects dropped"
        " spooled_max_bytes states"
    ),
}
"""The columns that the checks compare with the counts of the programs. A new column needs a check, and is added here then."""


def test_the_checks_know_every_column() -> None:
    assert {table.name: [*table.names] for table in TABLES} == {name: columns.split() for name, columns in _COMPARED.items()}
