"""Defects of the link, of restarts of the bus, and of clients. Their tests share a bus, and have fewer hosts, rounds and values."""

from __future__ import annotations

from tests.defects.defect import Defect

_HERE = "tests/integration/"

CONNECTIONS = (
    # Links, with smaller realms and fewer faults.
    Defect(
        "sbus_services/link/peers.py",
        "        return min(MAX_INTERVAL, max(MIN_INTERVAL, self._alive / HOSTS_PER_SECOND))",
        "        return MIN_INTERVAL",
        "heartbeats do not become rarer in large realms",
        ("tests/unit/sbus_services/link/test_peers.py", "tests/property/test_link_large_realm.py"),
    ),
    Defect(
        "sbus_services/link/peers.py",
        "        self.clock += min(max(0.0, seconds), self.interval)",
        "        self.clock += max(0.0, seconds)",
        "a link that was stopped takes its own silence for that of the others",
        (
            "tests/unit/sbus_services/link",
            "tests/property/test_link_session.py",
        ),
    ),
    Defect(
        "sbus_services/link/session.py",
        "        self._peers.restart_clocks()\n",
        "",
        "after a pause of the network all hosts are gone at once",
        (
            "tests/unit/sbus_services/link",
            "tests/property/test_link_session.py",
        ),
    ),
    Defect(
        "sbus_services/link/session.py",
        "            self._lose_unknown()  # newer messages can come before the acknowledgement, and others be missing until then\n",
        "            pass\n",
        "what clients published while the bus was away is missing without a report",
        (
            "tests/unit/sbus_services/link",
            "tests/property/test_link_session.py",
        ),
    ),
    Defect(
        "sbus_services/link/interest_receiver.py",
        "        for line in sorted(before - wanted):\n            self._change(peer, line, is_wanted=False)\n",
        "",
        "what a snapshot no longer has stays wanted",
        (
            "tests/unit/sbus_services/link",
            "tests/property/test_link_session.py",
        ),
    ),
    # Restarts of the bus, with fewer rounds.
    Defect(
        "sbusd/restart/restore.py",
        "        outcome.then += [partial(_send_loss_notice, broker, client.connection) for client in broker.roster]",
        "        pass",
        "after a kill no client gets notice that messages may be missing",
        (f"{_HERE}test_handover.py::test_after_a_kill_at_any_point_connections_and_subscriptions_are_there",),
    ),
    Defect(
        "sbusd/restart/state_log.py",
        "        bus.next_connection = max(bus.next_connection, self._numbers)\n",
        "",
        "numbers of connections are used again after a kill",
        (
            "tests/unit/sbusd/broker/test_durable_state.py",
            f"{_HERE}test_handover.py::test_numbers_of_connections_are_never_used_again",
        ),
    ),
    Defect(
        "sbusd/restart/state_log.py",
        "            if client.tap is not None:\n                found.append(records.tapped(client.connection, client.tap))\n",
        "",
        "a tap is lost by a kill after the log was rewritten",
        (
            "tests/property/test_kept_state.py",
            f"{_HERE}test_handover.py::test_a_tap_and_the_wish_for_senders_outlive_a_kill_and_a_restart",
        ),
    ),
    Defect(
        "sbusd/restart/state_log.py",
        "(self._last is not None and pattern <= self._last)",
        "(self._last is not None and pattern < self._last)",
        "a change of the pattern that a rewrite has just written is lost",
        (
            "tests/property/test_kept_state.py",
            f"{_HERE}test_handover.py::test_after_a_kill_while_the_state_is_rewritten_all_is_there",
        ),
    ),
    Defect(
        "sbusd/restart/restore.py",
        "    if broker.taps.may_tap(client):\n        broker.quotas.force",
        "    if True:\n        broker.quotas.force",
        "a tap outlives its right",
        (
            "tests/unit/sbusd/restart",
            f"{_HERE}test_handover.py::test_the_rules_that_hold_after_the_restart_decide",
            f"{_HERE}test_handover.py::test_a_tap_and_the_wish_for_senders_outlive_a_kill_and_a_restart",
        ),
    ),
    # Clients, whose tests share a bus.
    Defect(
        "sbus/forks.py",
        "        held.enter_context(link.entered())\n",
        "        pass\n",
        "a fork copies a link that another thread changes",
        (
            f"{_HERE}test_client_threads.py::test_a_child_is_forked_while_other_threads_use_the_bus",
            f"{_HERE}test_client_forks.py",
        ),
    ),
    Defect(
        "sbus/sync/gathering.py",
        "            if self.session.outgoing.posted_bytes and self._sock is not None:\n",
        "            if False:\n",
        "what a program has gathered is lost when it ends",
        (f"{_HERE}test_client_lifecycle.py::test_a_program_that_ends_sends_what_it_has_gathered",),
    ),
    Defect(
        "sbus/rpc/live_requests.py",
        "            if request.reply_key and connection in {None, request.place[0]}:",
        "            if request.reply_key and connection is None:",
        "a request goes on when its caller has gone",
        (
            "tests/unit/sbus/rpc",
            f"{_HERE}test_cancellation.py",
        ),
    ),
    # Values in smaller numbers.
    Defect(
        "sbus_programs/config/documents.py",
        "'; '.join([*shown[:MAX_SHOWN], *more])",
        "'; '.join([*shown, *more])",
        "an error message has all errors of a long list",
        ("tests/unit/sbus_programs/config/test_hostile_values.py",),
    ),
)
