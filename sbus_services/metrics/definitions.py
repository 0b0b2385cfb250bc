"""The metrics: their names, types and meaning. sbus-metrics(8) has a table of them. Nothing here needs the library of Prometheus."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class MetricType(enum.Enum):
    """The type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``field`` is the member of the bus's response that has the value, empty if it is computed; ``scale`` is its factor."""

    name: str
    """The name of the samples, with the suffix of the type."""
    help: str
    kind: MetricType
    field: str = ""
    labels: tuple[str, ...] = ()
    scale: float = 1.0

    @property
    def family(self) -> str:
        """The name without the suffix."""
        suffix = {MetricType.COUNTER: "_total", MetricType.INFO: "_info", MetricType.GAUGE: ""}[self.kind]
        return self.name.removesuffix(suffix)


_MS = 0.001


def _counter(name: str, text: str, field: str = "", *labels: str, scale: float = 1.0) -> Metric:
    return Metric(f"sbus_{name}_total", text, MetricType.COUNTER, field, labels, scale)


def _gauge(name: str, text: str, field: str = "", *labels: str) -> Metric:
    return Metric(f"sbus_{name}", text, MetricType.GAUGE, field, labels)


UP = _gauge("up", "1 if the bus has answered this scrape, otherwise 0.")
SCRAPE_SECONDS = _gauge("scrape_duration_seconds", "Time that the bus took to answer this scrape.")
SCRAPE_FAILURES = _counter("scrape_failures", "Scrapes that the bus did not answer, since sbus-metrics was started.", "", "reason")
INFO = Metric("sbus_info", "The version of the bus, and its data plane.", MetricType.INFO, "", ("version", "dataplane"))
START = _gauge("start_time_seconds", "When the counters of the bus began, in seconds since 1970. Only a start without handover changes it.")

BUS = (
    _gauge("connections", "Connected clients.", "connections"),
    _gauge("subscriptions", "Stored patterns of all clients.", "subscriptions"),
    _gauge("queued_packets", "Packets in the queues of clients.", "queued_packets"),
    _gauge("queued_bytes", "Memory that is charged for packets in queues.", "queued_bytes"),
    _gauge("held_bytes", "Memory of packets in queues. A packet in several queues counts once.", "held_bytes"),
    _gauge("half_read_bytes", "Memory for frames of stream sockets that clients have sent in part.", "half_read_bytes"),
    _counter("accepted_connections", "Connections accepted.", "accepted"),
    _counter("accept_failures", "Connections that could not be accepted, because descriptors or memory were exhausted.", "accept_failures"),
    _counter("received_packets", "Packets that the bus has read from clients.", "received_packets"),
    _counter("received_bytes", "Bytes that the bus has read from clients.", "received_bytes"),
    _counter("messages", "Messages routed.", "messages"),
    _counter("undeliverable_messages", "Messages routed that had no recipient.", "undeliverable"),
    _counter("refused_messages", "Messages that the bus did not route, because of a rule or an error.", "refused_packets"),
    _counter("deliveries", "Packets addressed to clients: one for each recipient of a message.", "deliveries"),
    _counter("delivered_packets", "Packets that the sockets of clients have accepted.", "delivered_packets"),
    _counter("delivered_bytes", "Bytes that the sockets of clients have accepted.", "delivered_bytes"),
    _counter("lost_packets", "Packets discarded, because the queue of a client was full.", "lost_packets"),
    _counter("replaced_packets", "Packets in queues that a newer message with the same key has replaced.", "replaced_packets"),
    _counter("abandoned_packets", "Packets that were in the queue of a connection when it ended.", "abandoned_packets"),
    _counter("redelivered_packets", "Abandoned messages that another member of the queue group got.", "redelivered_packets"),
    _counter("publisher_blocks", "Times that a recipient began to block a publisher.", "blocks"),
    _counter("blocking_fallbacks", "Times that a recipient had blocked publishers for too long, and stopped to block them.", "fallbacks"),
    _counter("route_cache_hits", "Messages whose recipients were in the routing cache.", "cache_hits"),
    _counter("route_cache_misses", "Messages whose recipients were not in the routing cache.", "cache_misses"),
    _counter("turns", "Iterations of the event loop of the bus.", "turns"),
    _counter("received_batches", "Batches received.", "received_batches"),
    _counter("delivered_batches", "Batches sent.", "delivered_batches"),
    _counter("batched_packets", "Packets sent in batches.", "batched_packets"),
)
"""From the member ``counters``."""

CONTROL = (
    _counter("control_packets", "Packets received that were not messages.", "control_packets"),
    _counter("sent_errors", "Errors that the bus has sent to clients.", "sent_errors"),
    _counter("quota_refusals", "Requests refused because of a quota.", "quota_refusals"),
    _counter("reported_losses", "Loss notices that services had the bus send.", "reported_losses"),
    _counter("unknown_unsubscriptions", "Requests to unsubscribe from a pattern that was not stored.", "unknown_unsubscriptions"),
    _counter("descriptor_senders", "Connections ended because they sent descriptors.", "descriptor_senders"),
    _counter("internal_errors", "Defects of the bus, found while it handled a packet.", "internal_errors"),
    _gauge("configuration_faults", "Faults in the configuration that is in effect.", "configuration_faults"),
    _counter("users_forgotten_early", "Absent users whose rates were forgotten early.", "users_forgotten_early"),
    _counter("connection_store_failures", "Times that a connection could not be stored for a restart.", "connection_store_failures"),
    _gauge("missing_connections", "Connections that a restart would lose.", "connections_missing"),
    _counter("state_failures", "Times that the bus could not store its state for a restart.", "state_failures"),
    _counter("state_rewrites", "Times that the bus has rewritten its state for a restart.", "state_rewrites"),
)
"""From the member ``control``."""

LOG_RECORDS = _counter("log_records", "Records for the journal, by what became of them: written, suppressed or dropped.", "", "result")
LOG_RESULTS = ("written", "suppressed", "dropped")
LOG_WAITING = _gauge("waiting_log_records", "Records that wait to be written to the journal.", "waiting")

USER_GAUGES = (
    _gauge("user_connections", "Connections of the user.", "connections", "user"),
    _gauge("user_subscriptions", "Stored patterns of the user.", "subscriptions", "user"),
    _gauge("user_queued_packets", "Packets in the queues of the user.", "queued_packets", "user"),
    _gauge("user_queued_bytes", "Memory that is charged for packets in the queues of the user.", "queued_bytes", "user"),
    _gauge("user_half_read_bytes", "Memory for frames that the user has sent in part.", "half_read_bytes", "user"),
)
"""Of connected users. The bus has a sum of each, so there is also a value for other users."""

USER_USAGE = (
    _gauge("user_descriptors", "Descriptors that the connections of the user take.", "descriptors", "user"),
    _gauge("user_pattern_bytes", "Memory that is charged for the patterns of the user.", "pattern_bytes", "user"),
    _gauge("user_state_bytes", "Memory of the changes of the user in the state that the bus keeps.", "state_bytes", "user"),
)
"""Of connected users, without a value for others."""

USER_LIMIT = _gauge("user_quota", "The limit of a quota of the user. There is none for a quota without a limit.", "limits", "user", "quota")

USER_COUNTERS = (
    _counter("user_received_packets", "Packets that the bus has read from the user.", "received_packets", "user"),
    _counter("user_received_bytes", "Bytes that the bus has read from the user.", "received_bytes", "user"),
    _counter("user_delivered_packets", "Packets that the sockets of the user have accepted.", "delivered_packets", "user"),
    _counter("user_delivered_bytes", "Bytes that the sockets of the user have accepted.", "delivered_bytes", "user"),
    _counter("user_lost_packets", "Packets for the user that were discarded.", "lost_packets", "user"),
    _counter("user_replaced_packets", "Packets for the user that a newer message has replaced.", "replaced_packets", "user"),
    _counter("user_refused_messages", "Messages of the user that the bus did not route.", "refused_packets", "user"),
    _counter("user_blocked_seconds", "How long publishers of the user have been blocked.", "blocked_ms", "user", scale=_MS),
    _counter(
        "user_blocked_others_seconds", "How long recipients of the user have blocked publishers.", "blocked_others_ms", "user", scale=_MS
    ),
)
"""From ``!/bus/totals``, users without a connection too."""

USER_REFUSALS = _counter("user_quota_refusals", "Requests of the user refused because of a quota.", "quota_refusals", "user", "quota")

PREFIX_UP = _gauge("prefix_up", "1 while messages with the prefix are counted, otherwise 0.", "is_up", "prefix")
PREFIX_COUNTERS = (
    _counter("prefix_messages", "Messages whose keys have the prefix, since sbus-metrics was started.", "messages", "prefix"),
    _counter("prefix_payload_bytes", "Bytes of the payloads of these messages.", "payload_bytes", "prefix"),
    _counter("prefix_recipients", "Recipients of these messages.", "recipients", "prefix"),
    _counter("prefix_discarded_packets", "Packets with these messages that were discarded.", "discarded", "prefix"),
    _counter(
        "prefix_missed_messages", "Messages that the bus could not report to sbus-metrics. They are in no other count.", "missed", "prefix"
    ),
    _counter(
        "prefix_interruptions", "Times that counting was interrupted: unknown numbers of messages are missing.", "interruptions", "prefix"
    ),
)

ENDPOINT = (SCRAPE_FAILURES, PREFIX_UP, *PREFIX_COUNTERS)
"""The metrics that only the endpoint has, not ``sbusctl stats``."""

METRICS = (
    UP,
    SCRAPE_SECONDS,
    SCRAPE_FAILURES,
    INFO,
    START,
    *BUS,
    *CONTROL,
    LOG_RECORDS,
    LOG_WAITING,
    *USER_GAUGES,
    *USER_USAGE,
    USER_LIMIT,
    *USER_COUNTERS,
    USER_REFUSALS,
    PREFIX_UP,
    *PREFIX_COUNTERS,
)
"""All metrics, in the order of the manual."""
