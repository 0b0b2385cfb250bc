"""The figures in the sentences of the manual are those of the code."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from sbus_programs.config.quantities import show_duration, show_size
from tests.bench import linked_hosts
from tests.bench.peers import contenders
from tests.bench.peers.run import FULL
from tests.support.manual import source, words
from tools.stage import HOUSES, ROOT

FIGURES = {
    "blob.toml.5": ["unknown tickets within {blob.registry.GUESS_SECONDS:g} seconds"],
    "feed-dbus.toml.5": [
        "a queue for {feeds.dbus.signal_feed.QUEUE_MESSAGES} signals and {feeds.dbus.signal_feed.QUEUE_BYTES >> 20} MiB",
        "There can be {config.feed_dbus.MAX_SIGNALS}.",
        "more than {feeds.dbus.signal_feed.MAX_PART_BYTES} bytes is truncated",
    ],
    "link.toml.5": [":{config.link.PORT}", "for up to {link.network.direct.MAX_PEERS} hosts"],
    "sbus-blob.8": [
        "at most {protocol.blobs.MAX_EXPIRE:g}; the default is {protocol.blobs.DEFAULT_EXPIRE:g}",
        "of at most {protocol.blobs.MAX_PASS_EXPIRE:g}",
        "{protocol.blobs.DEFAULT_TYPE}",
        "at most {blob.handlers.PAGE}",
        "at most {protocol.blobs.MAX_REQUEST_BYTES} bytes",
        "The room is the limit of descriptors without {blob.service.SPARE_DESCRIPTORS}.",
        "With the limit of the units, {unit_of('blob', 'LimitNOFILE')}, half of it is "
        "{(unit_of('blob', 'LimitNOFILE') - blob.service.SPARE_DESCRIPTORS) // blob.service.PAUSING_PART}.",
        "the limit of descriptors is below {blob.service.LEAST_DESCRIPTORS};",
        "once in {systemd.log_records.QUIET_SECONDS:g} s",
    ],
    "sbus-feed.8": [
        "by default {feeds.main._CHANGE_RATE}",
        "because more than {feeds.dbus.changes.MAX_UNPUBLISHED} waited",
        "less than {feeds.dbus.changes.INTERVAL_SECONDS * 1000:.0f} ms can be missing",
        "reads these every {feeds.dbus.logind.READ_SECONDS:.0f} seconds",
        "memory of {unit_of('feed@systemd', 'MemoryMax')} MiB",
        "entries, 0 to {feeds.main._LINES_MOST}; default {feeds.journal.feed.StartPosition().lines}.",
        "up to 3650d; default {show_duration(feeds.journal.feed.StartPosition().backlog_seconds)}.",
        "1 to {feeds.main._RATE_MOST}; default {feeds.journal.feed.RATE}.",
        "limit is {feeds.journal.entry.MESSAGE_BYTES >> 10} KiB for MESSAGE "
        "and {feeds.journal.entry.VALUE_BYTES >> 10} KiB for any other field",
        "at most {feeds.journal.entry.PAYLOAD_BYTES >> 10} KiB",
        "the {feeds.journal.reader.MEMORY_BYTES >> 20} MiB of memory",
        "before each batch of up to {feeds.journal.batch_reader.BATCH_ENTRIES} entries",
        "by default {feeds.udev.feed.RATE}. Up to {feeds.udev.devices.MAX_WAITING} further events wait in the feed",
        "up to {feeds.main._SUBSYSTEMS_MOST} times",
        "A value has at most {feeds.udev.devices.VALUE_CHARACTERS} characters",
        "All properties together have at most {feeds.udev.devices.PAYLOAD_BYTES >> 10} KiB",
        "{', '.join(feeds.journal.entry.PRIORITIES)}",
        "status {os.EX_CONFIG}",
    ],
    "sbus-link.8": [
        "At most {link.administration.MAX_WAITING_OF_USER} calls of one user, and {link.administration.MAX_WAITING} in all, can wait",
        "The command fails after {link.administration.SYNC_SECONDS:g} s",
        "the other hosts, at most {link.administration.MAX_HOSTS}",
        "has up to {link.administration.MAX_PATTERNS} patterns",
        "have {link.local_interest.LIMITS.lines} patterns for other hosts, of {link.local_interest.LIMITS.bytes >> 20} MiB "
        "with {link.remote_interest.COST} bytes for each, of which one {WORDS[1 / link.local_interest.RESERVED]} is reserved",
        "among {link.local_interest.LIMITS.lines * (link.local_interest.RESERVED - 1) // link.local_interest.RESERVED // 16} users, "
        "each can have 16 patterns",
        "A host can have {link.remote_interest.MAX_ALL_PATTERNS} patterns of all others",
        "no heartbeat for three intervals, {link.peers.MISSED * link.peers.MIN_INTERVAL:g} seconds",
        "knows at most {link.peers.MAX_PEERS} other hosts",
        "n / {link.peers.HOSTS_PER_SECOND} seconds, at least every {link.peers.MIN_INTERVAL:g} "
        "and at most every {link.peers.MAX_INTERVAL:g} seconds",
        "noticed after {link.peers.MISSED * link.peers.MAX_INTERVAL / 60:g} minutes",
        "{link.remote_interest.MAX_ALL_PATTERNS // 5_000} for each of 5000 hosts",
        "logged once in {systemd.log_records.QUIET_SECONDS:g} s",
        "{os.EX_CONFIG} The configuration is invalid",
        "{link.local_interest.HOSTED_HEAD.decode()}",
        "stays announced for {WORDS[link.local_interest.WITHDRAW_AFTER]} second after",
    ],
    "sbus-metrics.8": [
        "at most {config.metrics.MAX_PREFIXES}",
        "within {metrics.collector.BUS_SECONDS:g} s",
        "The bus itself remembers {broker.totals.MAX_USERS} users",
        "together have at most {metrics.server.MAX_OTHERS} connections",
        "within {metrics.server.REQUEST_SECONDS:g} s and have at most {metrics.server.MAX_REQUEST_BYTES >> 10} KiB",
        "the limit of descriptors is below {metrics.main.LEAST_DESCRIPTORS}",
        "While {metrics.listener.MAX_CLOSES} connections wait to be closed",
        "no request for {config.metrics.MetricsSettings().idle_timeout / 60:g} minutes",
        "once in {systemd.log_records.QUIET_SECONDS:g} s",
    ],
    "sbus-performance.7": [
        "publishes as fast as it can for {FULL.seconds:g} s, in {FULL.rounds} rounds",
        "One program publishes as fast as its library can for {FULL.python_seconds:g} s, another receives, in {FULL.python_rounds} rounds",
        "At most {PUMPS['1:1'].window} messages are in flight",
        "({PUMPS['1:1x64'].window} where {PUMPS['1:1x64'].group} are sent together, {PUMPS['1KiB'].window} of 1 KiB, "
        "{PUMPS['64KiB'].window} of 64 KiB)",
        "At most {hosts.BURSTS.window} messages of {hosts.BURSTS.payload} bytes",
        "At most {hosts.SINGLES.window} messages of {hosts.BURSTS.payload} bytes",
        "bursts of {hosts.BURSTS.group}",
        "in {hosts.FULL.rounds} rounds of {hosts.FULL.seconds:g} s",
    ],
    "sbus-pipeline.8": [
        "Only the {tables.schema.TOP} most used",
        "during {tables.schema.CALL_SECONDS} seconds",
        "within {tables.schema.LINK_SECONDS} seconds after that hour",
        "the first {pipeline.partials.deliveries.MAX_EVENTS} rows about subscriptions",
        "the first {pipeline.partials.routes.MAX_ROUTES} periods",
        "at least {pipeline.session.FEWEST_PARTITIONS}",
        "{WORDS[pipeline.session.PARTITIONS_PER_CORE].capitalize()} for each processor that Spark has when it starts",
    ],
    "sbus-protocol.7": [
        "The bus accepts packets of at most {protocol.packets.MAX_PACKET_BYTES} bytes.",
        "by default {protocol.keys.MAX_KEY_BYTES} bytes. "
        "It also rejects any packet of more than {protocol.packets.MAX_PACKET_BYTES} bytes.",
        "The bus makes no batch of more than {protocol.packets.MAX_BATCH_BYTES} bytes.",
        "A page has at most {broker.recipients.PAGE_MEMBERS} connections",
        "A page has at most {broker.control_messages.PAGE_CLIENTS} connections with numbers above <after>. !/bus/users",
        "A page has at most {broker.control_messages.PAGE_CLIENTS} connections with numbers above <after>, and fewer",
        "A page has at most {broker.control_messages.PAGE_USERS} users",
        "A page has at most {broker.taps.PAGE_PATTERNS} subscriptions",
        "if the connection has more than {broker.recipients.MAX_TRACED_PATTERNS} patterns,",
        "blocked now by at most {broker.recipients.LISTED_BLOCKERS} recipients",
        "While all connections of a user hold more than {dataplane.contract.UNREAD_BYTES >> 20} MiB of them",
        "Each queued key needs {dataplane.contract.KNOWN_KEY_BYTES} bytes of memory",
    ],
    "sbus-record.5": [
        "at most {recorder.retention.MAX_USERS} users",
        "{record.layout.OTHERS} for a segment of the users beyond the {recorder.retention.MAX_USERS} lowest user ids",
        "version {record.layout.INDEX_VERSION}; a reader",
        "sorted by {', '.join(record.schema.SORT_KEYS[:-1])} and {record.schema.SORT_KEYS[-1]}",
        "up to {record.segments.ROW_GROUP_ROWS} rows",
    ],
    "sbus-recorder.8": [
        "at most {show_size(protocol.packets.MAX_PACKET_BYTES)}",
        "at most {config.recorder.MAX_PAYLOAD_RULES}, each with keys",
        "no more than {recorder.recording.MAX_BATCH_BYTES >> 20} MiB of payloads",
        "more than {recorder.recording.MAX_PATTERNS} subscriptions",
        "Segments of the archive are retried every {recorder.converter.RETRY_SECONDS:g} seconds.",
        "The limit is one third of the fair share, and at most 1/128 of the quota",
        "The write-ahead log can use a quarter of the quota, or twice rotate_bytes if that is more.",
        "An index entry names at most {recorder.retention.MAX_USERS} users.",
        "the entry names the {recorder.retention.MAX_USERS} lowest user ids.",
        "{os.EX_CONFIG} An administrator must act",
    ],
    "sbus-relay.8": [
        "1 to {protocol.envelope.MAX_TWIN}",
        "port {config.relay.PORT} of every address",
        "0 means {relay.message_model.DEFAULT_EXPIRY_SECONDS}",
        "at most {protocol.envelope.MAX_DESTINATIONS}",
        "at most {relay.redis.store.MAX_REFUSED}.",
        "POST {relay.http.server.REMOTE_PATH}",
        "POST {relay.http.server.REPLY_PATH}",
        "The sender retries after status {', '.join(str(each) for each in sorted(relay.http.client.PASSING))} and 5xx.",
        "{relay.http.credentials.FROM}",
        "{relay.http.credentials.TIME}",
        "{relay.http.credentials.NONCE}",
        "{relay.http.credentials.SIGNATURE}",
        "at least {relay.http.credentials.MIN_KEY_BYTES} bytes and at most {relay.http.credentials.MAX_KEY_BYTES}",
        "{relay.http.credentials.twin_name(1002)}",
        "used for {relay.resolver.FRESH_SECONDS / 60:g} minutes",
        "requests with {show_size(relay.bus.incoming_calls.TWIN_BYTES)} for services in progress. "
        "At most {relay.bus.incoming_calls.AT_ONCE} of one command",
        "does not respond for {relay.bus.incoming_calls.ASK_SECONDS:g} s is disconnected",
        "{relay.queue_handler.ABANDONED_WORDS.format(twin='N', cmd='COMMAND')}",
        "logged once in {systemd.log_records.QUIET_SECONDS:g} s",
        "{os.EX_CONFIG} The configuration is invalid",
    ],
    "sbus-rpc.7": [
        "at most {protocol.envelope.TEXT_LIMITS['cmd']} bytes",
        "queues at most {rpc.request_queue.WAITING_PER_USER} requests for each user",
        "remembers the last {rpc.service._REMEMBERED_UIDS} uid of each of {rpc.service._REMEMBERED_CONNECTIONS} connections",
        "more than {rpc.streaming.MAX_WINDOW} parts beyond",
        "grants {rpc.stream_call.STREAM_WINDOW} parts by default",
        "can have {rpc.streaming.STREAMS_PER_USER} open streams",
        "{protocol.envelope.SERVICE_HEAD.decode()}",
        "at most {rpc.calls.MAX_STARTS} times for a call",
    ],
    "sbus-ship.8": [
        "at most {shipping.service.FIRST_DELAY_SECONDS:g} second, which doubles with each failure up to "
        "{shipping.service.LONGEST_DELAY_SECONDS / 60:g} minutes.",
    ],
    "sbus-spark.7": [
        "keeps {pipeline.source.live_stream.MOST_ROWS} rows or {pipeline.source.live_stream.MOST_BYTES >> 20} MiB of payloads",
        "for the live bus {pipeline.source.live_stream.LIVE_ROWS}.",
        "between two stores of the progress. The default is {pipeline.source.options.CHUNK_ROWS}.",
        "The rows of one task can have at most {pipeline.source.publisher.MOST_TASK_BYTES >> 20} MiB.",
        "names of segments for the {WORDS[pipeline.source.archive_offset.DAYS_BY_NAME]} newest days of each host",
        "messages in doubt. The default is {pipeline.source.options.Options().in_doubt}; the other value is skip.",
    ],
    "sbus-trigger.8": [
        "{trigger.jobs.MAX_RUNNING} actions run at the same time, {trigger.jobs.MAX_RUNNING_OF_USER} of them for one user",
        "Actions for {trigger.jobs.MAX_UNITS} other units wait, {trigger.jobs.MAX_UNITS_OF_USER} of them for one user",
        "more than {trigger.message_files.MAX_UNITS} units or {trigger.message_files.MAX_BYTES >> 20} MiB",
        "are removed about a {WORDS[trigger.message_files.KEPT_SECONDS]} after the job",
        "read every {WORDS[trigger.service_starts._LAST_PAUSE]} second or more often",
        "wait for it, up to {trigger.service_starts.MAX_CALLS_OF_USER} of each user",
        "If {trigger.service_starts.MAX_CALLS} of all users wait, each user can still have one",
        "once in {systemd.log_records.QUIET_SECONDS:g} s",
    ],
    "sbus-web.8": [
        "sessions, 1 to {web.main.MOST_SESSIONS}.",
        "of a session, 1 to {web.main.MOST_PATTERNS}.",
        "{show_size(web.main._QUEUE.least)} to {show_size(web.main._QUEUE.most)}",
        "at most {web.frames.MAX_FRAME_BYTES} bytes",
        "and {web.session.QUEUE_PACKETS} messages wait for each pattern",
        "more than {web.connections.MAX_CONNECTIONS} connections",
        "After {web.logins.MAX_FAILURES} wrong tokens within {web.logins.FAILURE_SECONDS:g} s",
        "At most {web.logins.MAX_LOGINS} browsers can be logged in",
        "or {web.loopback.MAX_CONNECTIONS} connections",
        "within {web.server.HEARTBEAT_SECONDS / 2:g} s is disconnected; pings are sent every {web.server.HEARTBEAT_SECONDS:g} s",
        "logged once in {systemd.log_records.QUIET_SECONDS:g} s",
    ],
    "sbus.7": [
        "For an owner, the limits that the table above gives for one user are "
        "{config.settings.QuotaSettings().owner_factor} times as large.",
        "While {dataplane.socket_closer.MAX_SOCKETS} connections wait to be closed, the bus accepts none.",
        "it would have to be below {dataplane.socket_closer.MAX_SOCKETS - 1}.",
    ],
    "sbusctl.1": ["at most {sbusctl.program_runner.MAX_ANSWER_BYTES} bytes"],
    "sbusd.8": [
        "{daemon.options.SYSTEM_ADDRESS}",
        "{daemon.options.Options().pid_file}",
        "{daemon.options.Options().main_file}",
        "{daemon.options.NO_PID_FILE}",
        "add 0{daemon.options.GROUP_MODE:03o} to 0{daemon.options.Options().socket_mode:o}, the mode of the socket.",
        "add 000{daemon.options.OTHERS_MODE:o} to the mode of the socket.",
        "At most {broker.log.MAX_WAITING} records are queued",
        "are truncated to {systemd.log_records.MAX_FACT_BYTES} bytes",
        "averaged over at least the last {systemd.service_manager.STATUS_SECONDS:.0f} seconds",
        "may take up to {systemd.service_manager.EXTEND_SECONDS:.0f} seconds even if",
        "a limit of descriptors below {broker.quotas.LEAST_DESCRIPTORS},",
    ],
    "sbusd.toml.5": [
        "There can be {config.rules.MAX_RULES} rules, {config.rules.MAX_PUBLISH_RULES} of them with",
        "At most {config.rules.MAX_COMMENT_CHARACTERS} characters",
        "{', '.join(config.settings.LEVELS[:-1])} or {config.settings.LEVELS[-1]}",
    ],
    "trigger.toml.5": [
        "There can be {config.trigger.MAX_RULES}.",
        "more than {config.trigger.MAX_UNIT_BYTES} bytes",
        "{WORDS[trigger.rule_state.ALL_USERS]} times this number. "
        "{WORDS[trigger.rule_state.FIRST_ACTIONS / trigger.rule_state.ALL_USERS].capitalize()} of that is kept",
    ],
}
"""For each page texts that it has. Each is an f-string whose names are parts of the packages: modules are imported when they are named."""


@dataclass(frozen=True)
class _Package:
    """A package or module, whose attributes are its modules and what these define."""

    name: str

    def __getattr__(self, part: str) -> Any:
        found = getattr(import_module(self.name), part, None)
        return _Package(f"{self.name}.{part}") if found is None or isinstance(found, ModuleType) else found


def _unit_of(service: str, key: str) -> int:
    """Return the number that a service of the system has for *key*."""
    unit = (ROOT / f"units/system/sbus-{service}.service").read_text()
    return int(unit.partition(f"\n{key}=")[2].partition("\n")[0].rstrip("M"))


WORDS = {2: "two", 4: "four", 10: "ten", 60: "minute", 1: "one", 1 / 2: "half", 1 / 8: "eighth"}

NAMES: dict[str, Any] = {
    path.name: _Package(f"{house}.{path.name}") for house in HOUSES for path in (ROOT / house).iterdir() if path.is_dir()
}
NAMES |= {
    "sbusctl": _Package("sbusctl"),
    "os": os,
    "show_size": show_size,
    "show_duration": show_duration,
    "unit_of": _unit_of,
    "WORDS": WORDS,
}
NAMES |= {"FULL": FULL, "PUMPS": contenders.PUMPS, "hosts": linked_hosts}


@pytest.mark.parametrize("page", FIGURES)
def test_the_figures_of_a_page_are_those_of_the_code(page: str) -> None:
    text = words(source(page))
    stated = [eval(f'f"""{each}"""', dict(NAMES)) for each in FIGURES[page]]
    assert [each for each in stated if each not in text] == []
