"""One session with recorded ports; the property tests simulate whole realms."""

from __future__ import annotations

import json

import pytest

from sbus_services.link.frames import (
    MAX_TAILS,
    Applied,
    Changes,
    Data,
    Heartbeat,
    Line,
    Snapshot,
    Tail,
    add_serial,
    encode_head,
    encode_line,
    encode_tail,
    parse_head,
    parse_tails,
)
from sbus_services.link.local_interest import Cost
from sbus_services.link.message_runs import MessageRun, message_runs
from sbus_services.link.rules import Export, Import, Rules
from sbus_services.link.session import LinkSession
from tests.support.link_bodies import SENDER, join_body, run_of, sent
from tests.support.link_recorders import RecordedBus, RecordedNetwork, receive

RULES = Rules("R", "a", (Export(b"net/"),), (Import(b""), Import(b"cluster/", shared=True)), frozenset({"b"}), b"!/cred//990//")
FROM_B = b"CMSG !/from/!/host/b/" + SENDER + b"\0"
SHARED = Rules("R", "a", (), (Import(b"cluster/", shared=True), Import(b"")))


def _session(rules: Rules = RULES) -> tuple[LinkSession, RecordedNetwork, RecordedBus]:
    network, bus = RecordedNetwork(), RecordedBus()
    session = LinkSession(rules, 7, network, bus, 0.0)
    session.restarted()
    session.acknowledged(1)
    session.connected()
    session.barrier_passed(0)
    receive(session, "s.R.h.b", Heartbeat(1, 1, 2_000, 0, 0, 0, 1), b"")
    session.tick(0.0)
    return session, network, bus


def _noting() -> tuple[LinkSession, RecordedNetwork, RecordedBus, list[tuple[str, str, str]]]:
    """Return a session that notes two hosts with one name."""
    notes: list[tuple[str, str, str]] = []
    network, bus = RecordedNetwork(), RecordedBus()
    session = LinkSession(RULES, 7, network, bus, 0.0, note_namesake=lambda name, other, used: notes.append((name, other, used)))
    session.restarted()
    session.acknowledged(1)
    session.connected()
    session.barrier_passed(0)
    receive(session, "s.R.h.b", Heartbeat(1, 1, 2_000, 0, 0, 0, 1), b"")
    session.tick(0.0)
    return session, network, bus, notes


def test_nothing_is_announced_before_the_network_has_the_subscription() -> None:
    session, network, _ = _session()
    session.subscribed(1, 1000, b"host/b/net/")
    assert session.next_tick() == 0.0
    session.tick(0.0)
    assert (network.subjects["s.R.m.b.net.>"], network.taken("I")) == (1, [])
    session.barrier_passed(network.barriers[-1])
    assert network.taken("I") == [("s.R.i.a", b"I/7/1", encode_line(Line(b"b", b"net/"), wanted=True))]


def test_patterns_that_make_room_for_other_users_are_reported_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of one user are charged together."""
    monkeypatch.setattr("sbus_services.link.local_interest.LIMITS", Cost(5, 1 << 20))
    bus = RecordedBus()
    session = LinkSession(RULES, 7, RecordedNetwork(), bus, 0.0, charged=lambda uid: min(uid, 1_000))
    for number in range(5):
        session.subscribed(number, 1_000 + number, b"host/b/%d" % number)
    session.subscribed(9, 30, b"host/b/a")
    assert (bus.losses, session.counters.patterns_refused) == ([((b"host/b/4",), 0)], 1)


def test_interest_is_confirmed_after_the_bus_has_the_subscription() -> None:
    session, network, bus = _session()
    receive(session, "s.R.i.b", Changes(1, 1), encode_line(Line(b"a", b"net/x"), wanted=True))
    session.messages(run_of(b"net/x", b"early"))
    session.tick(0.1)
    assert (bus.patterns[b"net/x"], network.taken("A")) == (1, [])
    session.acknowledged(bus.acknowledgements[-1])
    (confirmation,) = network.taken("A")
    assert confirmation[:2] == ("s.R.x.b.a", encode_head(Applied(7, 1, 1, 1, 1, 0, 1)))
    session.messages(run_of(b"net/x", b"now", credentials=b"!/cred/1/2/3"))
    assert session.next_tick() == 0.1
    session.tick(0.1)
    assert network.taken("D") == [("s.R.m.a.net.x", encode_head(Data(7, 1, 1, 1)), join_body([sent(b"net/x", b"now")]))]
    assert (session.counters.not_wanted, session.counters.messages) == (1, 1)


def test_messages_of_a_subject_share_a_frame_of_at_most_64_kib() -> None:
    session, network, bus = _session()
    receive(session, "s.R.i.b", Changes(1, 1), encode_line(Line(b"a", b"net/"), wanted=True))
    session.tick(0.1)
    session.acknowledged(bus.acknowledgements[-1])
    for _ in range(20):
        session.messages(run_of(b"net/x", bytes(10_000)))
    session.messages(run_of(b"net/y", b""))
    session.tick(0.1)
    heads = [parse_head(add_serial(head, 1))[0] for _, head, _ in network.taken("D")]
    assert heads == [Data(7, 1, 1, 6), Data(7, 1, 7, 6), Data(7, 1, 13, 6), Data(7, 1, 19, 2), Data(7, 1, 21, 1)]


def test_a_private_message_goes_to_one_host_that_is_present_and_permitted() -> None:
    session, network, bus = _session()
    assert bus.patterns == {b"!/cred//990//": 1}
    for target in (b"b", b"c", b"a", b"", b"b.b"):
        key = b"!/cred//990//%b/!/cred//1000//mail" % target
        session.messages(run_of(key, b"hello", credentials=b"!/cred/1/1/1"))
    session.messages(run_of(b"!/cred//990//b/net/x", b""))
    session.tick(0.1)
    body = join_body([b"CMSG !/from/!/cred/1/1/1\0MSG !/cred//1000//mail\0hello"])
    assert network.taken("D") == [("s.R.x.b.a", encode_head(Data(7, 1, 1, 1)), body)]
    assert session.counters.refused_secrets == 5


def test_a_shared_import_keeps_the_key() -> None:
    session, _, bus = _session(SHARED)
    _confirm(session, 0, 1, 1)
    receive(session, "s.R.m.b.cluster.x", Data(1, 1, 1, 2), join_body([sent(b"cluster/x"), sent(b"net/x")]))
    assert bus.packets == [FROM_B + b"MSG cluster/x\0", FROM_B + b"MSG host/b/net/x\0"]


def test_a_key_that_gets_too_long_is_a_loss_in_its_place() -> None:
    session, network, bus = _session()
    session.subscribed(1, 1000, b"host/b/")
    session.tick(0.1)
    session.barrier_passed(network.barriers[-1])
    receive(session, "s.R.x.a.b", Applied(1, 7, 1, 1, 1, 0, 1), b"")
    packets = [sent(b"1"), sent(b"x" * 4_090), sent(b"2")]
    receive(session, "s.R.m.b.x", Data(1, 1, 1, 3), join_body(packets))
    assert (bus.events, bus.losses) == (["packet", "lost 1", "packet"], [((b"host/b/",), 1)])
    assert session.counters.hosts["b"].too_long == 1


def _confirm(session: LinkSession, version: int, number: int, first: int) -> None:
    receive(session, "s.R.x.a.b", Applied(1, 7, version, number, first, 0, 1), b"")


def _announced() -> tuple[LinkSession, RecordedNetwork, RecordedBus]:
    """Return a session that has announced one line."""
    session, network, bus = _session()
    session.subscribed(1, 1000, b"host/b/net/")
    session.tick(0.1)
    session.barrier_passed(network.barriers[-1])
    return session, network, bus


def test_flows_before_the_confirmed_one_are_not_counted() -> None:
    session, _, bus = _announced()
    _confirm(session, 1, 1, 5)
    for flow in (4, 5):
        receive(session, "s.R.m.b.net.x", Data(1, flow, 3, 1), join_body([sent(b"net/x")]))
    assert bus.events == ["packet", "lost 2", "packet"]


def test_lines_that_a_host_refuses_are_an_unknown_loss_for_present_and_future_clients() -> None:
    session, _, bus = _announced()
    receive(session, "s.R.x.a.b", Applied(1, 7, 1, 1, 1, 3, 1), b"")
    assert bus.losses == [((b"host/b/net/",), 0)]
    assert session.hosts()[0].counters.lines_refused_there == 3
    session.subscribed(2, 1000, b"host/b/net/")
    session.subscribed(2, 1000, b"host/c/net/")
    assert bus.losses[1:] == [((b"host/b/net/",), 0)]
    receive(session, "s.R.x.a.b", Applied(1, 7, 1, 2, 1, 3, 1), b"")
    receive(session, "s.R.x.a.b", Applied(1, 7, 1, 3, 1, 0, 1), b"")
    assert len(bus.losses) == 2
    session.subscribed(3, 1000, b"host/b/net/")
    assert len(bus.losses) == 2


def test_messages_before_the_host_has_confirmed_anything_are_ignored() -> None:
    """An earlier run of the link may have had later ones: a server can keep messages for some time."""
    session, _, bus = _announced()
    receive(session, "s.R.m.b.net.x", Data(1, 4, 1, 2), join_body([sent(b"net/x"), sent(b"net/x")]))
    assert bus.events == []
    assert session.counters.hosts["b"].duplicates == 2
    _confirm(session, 1, 1, 5)
    receive(session, "s.R.m.b.net.x", Data(1, 5, 1, 1), join_body([sent(b"net/x")]))
    assert bus.events == ["packet"]


def test_a_gap_before_the_confirmation_is_reported_with_it() -> None:
    session, _, bus = _announced()
    _confirm(session, 0, 1, 1)
    for flow in (4, 5):
        receive(session, "s.R.m.b.net.x", Data(1, flow, 3, 1), join_body([sent(b"net/x")]))
    assert bus.events == ["packet", "packet"]
    _confirm(session, 1, 2, 5)
    assert bus.events == ["packet", "packet", "lost 2"]


def test_a_host_that_has_forgotten_this_one_causes_an_unknown_loss() -> None:
    session, _, bus = _announced()
    _confirm(session, 1, 1, 2)
    _confirm(session, 0, 1, 5)
    assert bus.events == ["lost 0"]
    # It does not know the line yet, so the flow does not include it.
    receive(session, "s.R.m.b.net.x", Data(1, 5, 3, 1), join_body([sent(b"net/x")]))
    _confirm(session, 1, 2, 6)
    assert bus.events == ["lost 0", "packet", "lost 0"]


def test_a_missing_confirmation_causes_an_unknown_loss() -> None:
    session, _, bus = _announced()
    _confirm(session, 1, 3, 2)
    _confirm(session, 1, 3, 2)
    _confirm(session, 1, 4, 2)
    assert bus.events == ["lost 0"]
    assert session.counters.hosts["b"].stale == 1


def test_a_host_that_does_not_confirm_is_asked_to_begin_again() -> None:
    session, network, bus = _announced()
    network.frames.clear()
    for beat in range(2, 5):
        receive(session, "s.R.h.b", Heartbeat(1, beat, 2_000, 0, 0, 0, 1), b"")
    assert network.taken("Q") == [("s.R.x.b.a", b"Q/7/1", b"")]
    _confirm(session, 1, 1, 9)
    assert bus.events == ["lost 0"]


def test_a_host_whose_interest_differs_is_asked_for_it() -> None:
    session, network, _ = _session()
    network.frames.clear()
    receive(session, "s.R.h.b", Heartbeat(1, 2, 2_000, 3, 4, 0, 1), b"")
    assert network.taken("Q") == [("s.R.x.b.a", b"Q/7/0", b"")]


def test_a_snapshot_withdraws_lines_that_it_does_not_have() -> None:
    session, network, bus = _session()
    body = b"".join(encode_line(Line(b"a", pattern), wanted=True) for pattern in (b"net/x", b"net/y"))
    receive(session, "s.R.i.b", Changes(1, 1), body)
    session.tick(0.1)
    receive(session, "s.R.h.b", Heartbeat(1, 2, 2_000, 3, 4, 0, 1), b"")
    body = b"".join(encode_line(Line(b"a", pattern), wanted=True) for pattern in (b"net/y", b"net/z"))
    receive(session, "s.R.x.a.b", Snapshot(1, 3, 4, 0, 1), body)
    assert bus.patterns == {b"!/cred//990//": 1, b"net/y": 1, b"net/z": 1}
    receive(session, "s.R.h.b", Heartbeat(1, 3, 2_000, 3, 4, 0, 1), b"")
    assert len(network.taken("Q")) == 1, "after it the interest is that of the host"


def test_an_announcement_in_parts_is_confirmed_with_its_last_part() -> None:
    session, network, bus = _session()
    for number in range(40):
        session.subscribed(1, 1000, b"host/b/%02d/" % number + b"x" * 4_000)
    session.tick(0.1)
    session.barrier_passed(network.barriers[-1])
    parts = network.taken("I")
    assert [head for _, head, _ in parts] == [b"I/7/1", b"I/7/2", b"I/7/3"]
    _confirm(session, 2, 1, 1)
    done: list[int] = []
    session.sync(lambda: done.append(1))
    session.tick(0.2)
    assert done == []
    _confirm(session, 3, 2, 1)
    assert (done, bus.losses) == ([1], [])


def test_a_key_that_changes_its_flow_keeps_the_order() -> None:
    session, network, bus = _session()
    receive(session, "s.R.h.c", Heartbeat(1, 1, 2_000, 0, 0, 0, 1), b"")
    receive(session, "s.R.i.b", Changes(1, 1), encode_line(Line(b"a", b"net/"), wanted=True))
    session.tick(0.1)
    session.acknowledged(bus.acknowledgements[-1])
    session.messages(run_of(b"net/y", b"other"))
    session.messages(run_of(b"net/x", b"first"))
    receive(session, "s.R.i.c", Changes(1, 1), encode_line(Line(b"a", b"net/"), wanted=True))
    session._receiver.begin()
    session.acknowledged(bus.acknowledgements[-1])
    session.messages(run_of(b"net/x", b"second"))
    session.messages(run_of(b"net/y", b"third"))
    session.tick(0.1)
    bodies = [
        join_body([sent(b"net/" + key, text)]) for key, text in ((b"y", b"other"), (b"x", b"first"), (b"x", b"second"), (b"y", b"third"))
    ]
    bodies[2] = encode_tail(Tail(1, 2, b"net/y")) + bodies[2]  # the end of the flow before, for receivers that miss something of it
    assert [body for _, _, body in network.taken("D")] == bodies


@pytest.mark.parametrize("changes", [1, 2])
def test_a_key_that_changes_its_flow_brings_the_end_of_its_former_one(changes: int) -> None:
    """Also if more other flows were active than a frame can list."""
    session, network, bus = _session()
    receive(session, "s.R.h.c", Heartbeat(1, 1, 2_000, 0, 0, 0, 1), b"")
    others = [b"net/%02d/" % number for number in range(20)]
    lines = [encode_line(Line(b"a", pattern), wanted=True) for pattern in (b"net/x", *others)]
    receive(session, "s.R.i.b", Changes(1, 1), b"".join(lines))
    session.tick(0.1)
    session.acknowledged(bus.acknowledgements[-1])
    session.messages(run_of(b"net/x", b"first", b"second"))
    session.tick(0.2)
    for change in range(changes):
        receive(session, "s.R.i.c", Changes(1, 1 + change), encode_line(Line(b"a", (b"net/x", others[0])[change]), wanted=True))
        session.tick(0.2)
        session.acknowledged(bus.acknowledgements[-1])
        for key in others:
            session.messages(run_of(key, b"other"))
        session.tick(0.3)
    network.frames.clear()
    session.messages(run_of(b"net/x", b"third"))
    session.messages(run_of(b"net/x", b"fourth"))
    session.tick(0.4)
    ((_, head, body),) = network.taken("D")
    data, _ = parse_head(add_serial(head, 1))
    assert isinstance(data, Data)
    tails = list(parse_tails(body[: data.tails]))
    assert (tails[0], len(tails), len(set(tails))) == (Tail(1, 2, b"net/x"), MAX_TAILS, MAX_TAILS)


def test_sync_waits_for_the_confirmation_of_each_live_host() -> None:
    session, network, _ = _session()
    done: list[str] = []
    session.subscribed(1, 1000, b"host/*/net/")
    session.sync(lambda: done.append("first"))
    session.sync(done.clear)
    session.cancel_sync(done.clear)
    session.tick(0.1)
    session.barrier_passed(network.barriers[-1])
    session.tick(0.2)
    assert (done, session.live_hosts()) == ([], ["b"])
    receive(session, "s.R.x.a.b", Applied(1, 7, 1, 1, 1, 0, 1), b"")
    assert done == ["first"]


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("cause", ["loss", "restart"])
def test_a_loss_of_the_bus_is_between_older_and_newer_messages(cause: str, is_away: bool) -> None:
    session, network, bus = _session()
    receive(session, "s.R.i.b", Changes(1, 1), encode_line(Line(b"a", b"net/"), wanted=True))
    session.tick(0.1)
    session.acknowledged(bus.acknowledgements[-1])
    if is_away:
        session.disconnected("cut")
    network.frames.clear()
    session.messages(run_of(b"net/x", b"old"))
    if cause == "loss":
        session.lost(3)
    else:
        session.restarted()
    session.messages(run_of(b"net/x", b"new"))
    session.tick(0.2)
    if is_away:
        assert network.frames == []
        session.connected()
        session.barrier_passed(0)
        session.tick(0.3)
    heads = [parse_head(add_serial(head, 1))[0] for _, head, _ in network.frames]
    assert [head for head in heads if isinstance(head, Data)] == [Data(7, 1, 1, 1, 0), Data(7, 1, 2, 1, 1)]
    assert isinstance(heads[-1], Heartbeat)  # at once, unless a newer message comes
    assert (heads[-1].forgotten, heads[-1].losses) == (1, 0)
    assert session.counters.bus_losses == (cause == "loss")


def test_a_loss_that_no_gap_shows_is_reported_once_and_before_newer_messages() -> None:
    session, _, bus = _announced()
    _confirm(session, 1, 1, 1)
    receive(session, "s.R.m.b.net.x", Data(1, 1, 1, 1), join_body([sent(b"net/x")]))
    receive(session, "s.R.m.b.net.x", Data(1, 1, 2, 1, 1), join_body([sent(b"net/x")]))
    receive(session, "s.R.h.b", Heartbeat(1, 2, 2_000, 0, 0, 0, 1, 1), b"")
    assert bus.events == ["packet", "lost 0", "packet"]


def test_a_host_is_gone_after_three_missed_heartbeats_but_not_while_this_one_slept() -> None:
    session, _, bus = _session()
    receive(session, "s.R.i.b", Changes(1, 1), encode_line(Line(b"a", b"net/"), wanted=True))
    session.tick(1_000.0)
    assert session.live_hosts() == ["b"]
    for second in range(1, 6):
        session.tick(1_000.0 + 2.0 * second)
    assert (session.live_hosts(), bus.patterns[b"net/"], session.counters.hosts["b"].silences) == ([], 0, 1)


def test_a_host_has_three_heartbeats_after_a_pause_of_the_network() -> None:
    """The network may have lost heartbeats before the pause was noticed."""
    session, _, _ = _session()
    for now in (2.0, 4.0, 6.0):
        session.tick(now)
    session.disconnected("no answer")
    session.tick(60.0)
    session.connected()
    session.barrier_passed(0)
    alive = []
    for now in (62.0, 64.0, 66.0, 68.0):
        session.tick(now)
        alive.append(session.live_hosts())
    assert alive == [["b"], ["b"], ["b"], []]


def test_the_subscriptions_are_made_again_on_a_new_connection_to_the_bus() -> None:
    session, _, bus = _session()
    receive(session, "s.R.i.b", Changes(1, 1), encode_line(Line(b"a", b"net/"), wanted=True))
    bus.patterns.clear()
    session.restarted()
    assert bus.patterns == {b"!/cred//990//": 1, b"net/": 1}


def test_the_counters_are_json() -> None:
    session, _, _ = _session()
    session.rejected("permissions violation")
    counted = json.loads(json.dumps(session.counters.as_json()))
    assert (counted["rejected"], counted["connections"], list(counted["hosts"])) == (1, 1, ["b"])


def test_a_sender_that_no_host_accepts_is_shortened_or_its_messages_are_lost() -> None:
    session, network, bus = _session()
    receive(session, "s.R.i.b", Changes(1, 1), encode_line(Line(b"a", b"net/"), wanted=True))
    session.tick(0.1)
    session.acknowledged(bus.acknowledgements[-1])
    for sender in (SENDER + b"/!/" + b"w" * 450 + b"/" + SENDER, b"", SENDER + b"/!/store/" + SENDER):
        (run,) = message_runs(join_body([b"CMSG !/from/%b\0MSG net/x\0" % sender if sender else b"MSG net/x\0"]), 0)
        assert isinstance(run, MessageRun)
        session.messages(run)
    session.tick(0.1)
    frames = network.taken("D")
    assert [parse_head(add_serial(head, 1))[0] for _, head, _ in frames] == [Data(7, 1, 1, 1), Data(7, 1, 3, 1)]
    assert [body for _, _, body in frames] == [
        join_body([sent(b"net/x")]),
        join_body([sent(b"net/x", sender=SENDER + b"/!/store/" + SENDER)]),
    ]
    assert session.counters.without_sender == 1


def _heartbeats(session: LinkSession, subject: str, epochs: tuple[int, ...]) -> None:
    """Let heartbeats of runs come in turns for nine seconds; the address of each is its epoch."""
    for turn in range(6):
        for epoch in epochs:
            address = b"192.0.2.%d" % epoch
            receive(session, subject, Heartbeat(epoch, turn + 2, 2_000, 0, 0, 0, 1, 0, 0, len(address)), address)
        session.tick(1.5 * (turn + 1))


def test_two_hosts_with_one_name_are_reported_with_their_addresses_and_their_loss() -> None:
    session, _, bus, notes = _noting()
    session.subscribed(1, 1000, b"host/b/net/")
    session.tick(0.1)
    session.barrier_passed(1)
    receive(session, "s.R.h.b", Heartbeat(3, 1, 2_000, 0, 0, 0, 1))
    receive(session, "s.R.x.a.b", Applied(3, 7, 1, 1, 1, 0, 1), b"")
    bus.events.clear()
    receive(session, "s.R.m.b.net.x", Data(2, 1, 1, 2), join_body([sent(b"net/x"), sent(b"net/x")]))
    assert (bus.events, notes) == ([], [])
    _heartbeats(session, "s.R.h.b", (2, 3))
    assert bus.events == ["lost 0"]
    assert set(notes) == {("b", "192.0.2.2", "192.0.2.3")}
    counters = session.hosts()[0].counters
    assert (counters.ignored, counters.namesakes) == (2, len(notes))


def test_a_host_with_the_name_of_this_one_is_reported() -> None:
    session, _, _, notes = _noting()
    receive(session, "s.R.h.a", Heartbeat(7, 1, 2_000, 0, 0, 0, 1))  # a frame of this run itself, which a server has kept
    _heartbeats(session, "s.R.h.a", (9,))
    assert set(notes) == {("a", "192.0.2.9", "192.0.2.1")}
    assert session.counters.namesakes == len(notes)


@pytest.mark.parametrize("own", [False, True])
def test_late_heartbeats_of_an_earlier_run_are_not_another_host(own: bool) -> None:
    session, _, _, notes = _noting()
    receive(session, "s.R.h.b", Heartbeat(3, 1, 2_000, 0, 0, 0, 1))
    for begin in (1.0, 30.0):
        for beat in range(20):
            receive(session, "s.R.h.a" if own else "s.R.h.b", Heartbeat(2, beat, 2_000, 0, 0, 0, 1))
        for second in range(20):
            session.tick(begin + second)
            receive(session, "s.R.h.b", Heartbeat(3, 2, 2_000, 0, 0, 0, 1))
    assert notes == []


def test_frames_of_another_version_are_counted_and_ignored() -> None:
    session, _, bus = _session()
    before = session.live_hosts()
    for line in (b"H/9/1/2000/0/0/0/1/5", b"3/D/1/1/1/1/5"):
        receive(session, "s.R.h.b", line, b"")
    counters = session.hosts()[0].counters
    assert (counters.other_version, counters.malformed, session.live_hosts(), bus.packets) == (2, 0, before, [])
