"""Defects of services. Their tests share a bus, and the services are forked from one process."""

from __future__ import annotations

from tests.defects.defect import Defect

_HERE = "tests/integration/"

SERVICES = (
    # Services whose tests share a bus.
    Defect(
        "sbus_services/metrics/server.py",
        "        self._open[may_scrape] -= Counter([charged])",
        "        pass",
        "connections that end are never subtracted",
        (
            "tests/unit/sbus_services/metrics",
            f"{_HERE}test_metrics.py::test_values_are_what_the_users_have_done",
            f"{_HERE}test_metrics.py::test_both_formats_have_the_same_values",
            f"{_HERE}test_metrics.py::test_other_users_cannot_take_the_connections",
        ),
    ),
    Defect(
        "sbus_services/metrics/collector.py",
        "                counts.interruptions += 1\n",
        "",
        "a lost connection of the tap is not counted",
        (
            "tests/unit/sbus_services/metrics",
            f"{_HERE}test_metrics.py::test_prefixes_are_counted_and_the_tap_is_no_recipient",
        ),
    ),
    Defect(
        "sbus_services/metrics/collector.py",
        'self.recipients += _whole(item.fields.get("recipients"))',
        'self.recipients += _whole(item.fields.get("recipients")) + 1',
        "the tap counts as a recipient",
        (
            "tests/unit/sbus_services/metrics",
            f"{_HERE}test_metrics.py::test_prefixes_are_counted_and_the_tap_is_no_recipient",
        ),
    ),
    Defect(
        "sbus_services/metrics/snapshot.py",
        "chosen = frozenset(accounts_first(totals, is_subordinate)[:max_users])",
        "chosen = frozenset(accounts_first(totals, is_subordinate)[: max_users + 1])",
        "one user more than the limit has series",
        (f"{_HERE}test_metrics.py::test_users_above_the_limit_are_other",),
    ),
    Defect(
        "sbus_services/metrics/collector.py",
        '            found = self._failure("refused", str(error), started)',
        '            found = self._failure("no-bus", str(error), started)',
        "a refusal is counted as a bus that does not run",
        (
            f"{_HERE}test_metrics.py::test_a_user_without_the_right_learns_what_is_missing",
            f"{_HERE}test_metrics.py::test_the_right_stats_is_enough_for_metrics_and_not_for_prefixes",
        ),
    ),
    Defect(
        "sbus_services/trigger/jobs.py",
        "            self._files.finished(firing.unit)\n",
        "            pass\n",
        "files of finished units are never removed",
        ("tests/unit/sbus_services/trigger",),
    ),
    Defect(
        "sbus_services/trigger/rule_state.py",
        "message.key_bytes.startswith(OWN_HEAD)",
        "False",
        "the messages of the trigger match its own rules",
        ("tests/unit/sbus_services/trigger",),
    ),
    Defect(
        "sbus_services/trigger/report.py",
        "None if firing.sender is None else firing.sender.uid",
        "None if firing.sender is None else firing.sender.pid",
        "the event names the process instead of the user",
        (
            f"{_HERE}test_trigger.py::test_a_failure_is_counted_logged_and_published",
            f"{_HERE}test_trigger.py::test_only_messages_of_the_named_user_start_the_unit",
        ),
    ),
    Defect(
        "sbus_services/trigger/jobs.py",
        '        self._counts["abandoned"] += sum(jobs.messages for jobs in units.values())\n',
        "",
        "messages whose action was not requested at the end are not counted",
        (
            "tests/unit/sbus_services/trigger",
            f"{_HERE}test_trigger.py::test_actions_that_wait_are_requested_when_the_trigger_stops",
        ),
    ),
    Defect(
        "sbus_services/feeds/netlink/stored_values.py",
        "if existing & set(stale) or existing - {each.key for each in own}:",
        "if existing & set(stale):",
        "values that the store does not have are not published again",
        (
            "tests/unit/sbus_services/feeds",
            f"{_HERE}store/test_stored_feed.py",
        ),
    ),
    Defect(
        "sbus_services/feeds/netlink/stored_values.py",
        'return isinstance(found, dict) and found.get("namespace") == self._namespace',
        "return isinstance(found, dict)",
        "values of another network namespace are removed as stale",
        (
            "tests/unit/sbus_services/feeds",
            f"{_HERE}store/test_stored_feed.py",
        ),
    ),
    Defect(
        "sbus_services/feeds/snapshot_feed.py",
        'self._wanted = "reconnect" if self._wanted in {None, "request"} else self._wanted',
        'self._wanted = "reconnect" if self._wanted is None else self._wanted',
        "a request that waits hides the reason reconnect",
        (
            "tests/unit/sbus_services/feeds",
            f"{_HERE}test_netlink_feed.py::test_a_restarted_bus_gets_a_new_snapshot",
            f"{_HERE}test_udev_feed.py::test_a_restarted_bus_gets_a_new_snapshot",
        ),
    ),
    Defect(
        "sbus_services/feeds/snapshot_feed.py",
        '        self.close()\n        self._wanted = "overrun"',
        '        self._wanted = "overrun"',
        "after lost messages the feed goes on with older ones",
        (
            "tests/unit/sbus_services/feeds",
            f"{_HERE}test_netlink_feed.py::test_overrun_is_followed_by_a_fresh_snapshot",
            f"{_HERE}test_udev_feed.py::test_overrun_is_a_gap_and_the_state_is_read_again",
        ),
    ),
    Defect(
        "sbus_services/blob/service.py",
        "        client.user.connections -= 1\n",
        "",
        "connections that ended stay in the quota",
        (
            f"{_HERE}test_blob_quotas.py::test_connections_are_limited_by_user",
            f"{_HERE}test_blob_quotas.py::test_bytes_are_counted_until_a_blob_ends",
        ),
    ),
    Defect(
        "sbus_services/blob/service.py",
        (
            "        for blob in self._handlers.registry.of_connection(client.credentials.uid, client):\n"
            "            self._handlers.end(blob, End.DISCONNECTED)\n"
        ),
        "",
        "blobs outlive the connection of their owner",
        (f"{_HERE}test_blobs.py::test_blobs_end_with_their_connection_unless_they_are_kept",),
    ),
    Defect(
        "sbus_services/blob/registry.py",
        "if blob is not None and blob.until > self._clock():",
        "if blob is not None:",
        "an expired blob is handed out until it is removed",
        (
            "tests/unit/sbus_services/blob",
            f"{_HERE}test_blobs.py::test_the_reason_says_why",
        ),
    ),
    Defect(
        "sbus_services/blob/registry.py",
        "        if user.bytes + size > self.quotas.bytes:",
        "        if user.bytes + size >= self.quotas.bytes:",
        "the last byte of the quota cannot be used",
        (
            "tests/unit/sbus_services/blob",
            f"{_HERE}test_blob_quotas.py::test_bytes_are_counted_until_a_blob_ends",
        ),
    ),
    Defect(
        "sbus_services/blob/service.py",
        "        client.user.requests -= 1\n",
        "",
        "requests that were answered stay in the quota",
        (
            f"{_HERE}test_blob_quotas.py::test_a_bus_that_does_not_answer_blocks_only_requests_for_connections",
            f"{_HERE}test_blob_quotas.py::test_a_descriptor_is_only_for_a_named_recipient_once_and_soon",
        ),
    ),
    # The web page, whose tests share a gateway and a browser.
    Defect(
        "sbus_services/web/session.py",
        "        await subscription.close()\n        pump.cancel()",
        "        pump.cancel()",
        "a pattern stays subscribed after unsubscribe",
        (
            f"{_HERE}test_web_sessions.py::test_no_message_follows_the_end_of_a_subscription",
            f"{_HERE}test_web_sessions.py::test_a_session_leaves_nothing_behind_on_the_bus",
        ),
    ),
    Defect(
        "sbus_services/web/session.py",
        "        if pattern in self._pumps:\n            raise "
        'frames.InvalidFrameError("pattern: this session is already subscribed to it")\n',
        "",
        "the same pattern is subscribed twice",
        (
            f"{_HERE}test_web_sessions.py::test_patterns_and_sessions_are_limited",
            f"{_HERE}test_web_sessions.py::test_a_wrong_frame_gets_an_error_that_names_the_mistake",
        ),
    ),
    Defect(
        "sbus_services/web/server.py",
        "            del self._sessions[session]\n",
        "            pass\n",
        "sessions that ended stay in the limit",
        (
            f"{_HERE}test_web_sessions.py::test_patterns_and_sessions_are_limited",
            f"{_HERE}test_web_sessions.py::test_a_session_leaves_nothing_behind_on_the_bus",
        ),
    ),
    Defect(
        "sbus_services/web/logins.py",
        "        self._token = _secret()\n        login = Login()",
        "        login = Login()",
        "a link can be used twice",
        (
            "tests/unit/sbus_services/web",
            f"{_HERE}test_web.py::test_a_link_works_once_and_leaves_secrets_that_scripts_cannot_read",
        ),
    ),
    Defect(
        "sbus_services/web/server.py",
        'httponly=True, samesite="Strict", path="/"',
        'samesite="Strict", path="/"',
        "scripts can read the cookie",
        (f"{_HERE}test_web.py::test_a_link_works_once_and_leaves_secrets_that_scripts_cannot_read",),
    ),
    Defect(
        "sbus_services/web/session.py",
        "                await self._report_refusals()\n",
        "",
        "refusals without a request are not reported to the browser",
        (f"{_HERE}test_web_sessions.py::test_the_bus_refuses_what_its_rules_deny",),
    ),
    Defect(
        "sbus_services/web/session.py",
        "                    await self._socket.send_str(frames.state(known))\n",
        "                    pass\n",
        "the page does not learn that the bus was lost",
        (f"{_HERE}test_web_sessions.py::test_a_session_survives_a_restart_of_the_bus",),
    ),
    # The store, whose tests share a bus.
    Defect(
        "sbus_services/store/calls/read_calls.py",
        "for stream in await self._with_last_values(request, pattern)]\n        if not wanted:",
        "for stream in self._context.routes.with_last_values(pattern)]\n        if not wanted:",
        "last values are read without the rights of the caller",
        (
            f"{_HERE}store/test_hostile_users.py::test_what_a_rule_hides_is_hidden_in_every_call",
            f"{_HERE}store/test_hidden_streams.py",
        ),
    ),
    Defect(
        "sbus_services/store/calls/read_calls.py",
        '        await self._check_stream(request, stream, b"")\n',
        "",
        "the position of a reader tells whether a hidden stream exists",
        (
            f"{_HERE}store/test_hidden_streams.py",
            f"{_HERE}store/test_hostile_users.py::test_what_a_rule_hides_is_hidden_in_every_call",
        ),
    ),
    Defect(
        "sbus_services/store/calls/remote_calls.py",
        "            if each.is_open_to(request.source)\n        ]\n        return framed_data",
        "        ]\n        return framed_data",
        "other hosts see closed streams in the list",
        (f"{_HERE}store/test_other_hosts.py",),
    ),
    Defect(
        "sbus_services/store/calls/remote_calls.py",
        "with context.calls.held(account):",
        "with context.calls.held(request.caller.uid):",
        "all other hosts share the calls of one user",
        (
            "tests/unit/sbus_services/store/calls",
            f"{_HERE}store/test_other_hosts.py",
        ),
    ),
    Defect(
        "sbus_services/store/access.py",
        'decision = _Decision(answer["allowed"] is True, answer.get("owner") is True,',
        'decision = _Decision(answer["allowed"] is True, answer["allowed"] is True,',
        "a user that may subscribe to everything counts as an owner",
        (
            "tests/unit/sbus_services/store",
            f"{_HERE}store/test_hostile_users.py::test_only_owners_purge_and_revive_and_users_forget_their_own",
        ),
    ),
    Defect(
        "sbus_services/store/calls/read_calls.py",
        "            if run and engine.valid_from(stream.name, seq, run) < seq:",
        "            if run and engine.valid_from(stream.name, seq, run) <= seq:",
        "a valid position is refused as one of another file",
        (
            f"{_HERE}store/test_calls.py::test_a_reader_continues_where_its_position_is",
            f"{_HERE}store/test_calls.py::test_each_response_with_numbers_of_messages_names_the_run",
            f"{_HERE}store/test_client.py",
        ),
    ),
    # Starts and ends of services, which are forked.
    Defect(
        "sbus_services/store/main.py",
        "        exit_on_ending_signals()\n",
        "",
        "a signal during the start kills the program",
        (f"{_HERE}test_signals_at_start.py",),
    ),
    Defect(
        "sbus_programs/exhaustion.py",
        "        return next((reason for number, reason in _REASONS.items() if os.strerror(number) in str(error)), None)\n",
        "        return None\n",
        "a shared object that cannot be opened for want of descriptors is a traceback",
        (
            "tests/unit/sbus_programs/test_exhaustion.py",
            f"{_HERE}test_exhaustion.py::test_few_descriptors_are_reported_in_one_line",
        ),
    ),
    Defect(
        "sbus_services/feeds/journal/checked_publisher.py",
        "                self._check(bus)\n                return self._publish(bus, batch)",
        "                return self._publish(bus, batch)",
        "rules that were removed do not stop the feed",
        (f"{_HERE}test_journal_feed.py",),
    ),
)
