"""What is sent, and what a received packet means: no socket."""

from __future__ import annotations

import pytest

from sbus.bus_calls import Call
from sbus.errors import AnswerLost, Closed, Disconnected, NotSubscribed, PayloadTooLarge, ProtocolError, RemoteRefusal
from sbus.inbox import Inbox
from sbus.incoming import MessageRun
from sbus.items import Gap, Message, Reconnected, Replaced
from sbus.notices import _KEPT_REFUSALS
from sbus.protocol.credentials import Peer
from sbus.protocol.errors import ErrorCode
from sbus.protocol.packets import join_batch
from sbus.resubscription import resubscribe
from sbus.session import Session

ERROR = b"CMSG !/bus/error\0EPERM no"


def sent(session: Session) -> list[bytes]:
    packets = list(session.outgoing)
    session.outgoing.clear()
    return packets


def pong(number: int) -> bytes:
    return b"CMSG !/bus/ping\0sbus/%d" % number


def subscribed(session: Session, *patterns: bytes) -> tuple[Inbox, list[Call]]:
    inbox = session.new_inbox(patterns)
    calls = session.subscribe(inbox)
    for packet in sent(session):
        if packet.startswith(b"CMSG"):
            session.receive(packet)
    return inbox, calls


def test_each_pattern_has_a_barrier_of_its_own() -> None:
    session = Session()
    calls = session.subscribe(session.new_inbox([b"a", b"b"]))
    assert sent(session) == [b"SUB a", pong(1), b"SUB b", pong(2)]
    session.receive(pong(1))
    session.receive(ERROR)
    session.receive(pong(2))
    assert calls[0].result() == b""
    with pytest.raises(RemoteRefusal, match="SUB 'b'"):
        calls[1].result()


def test_a_call_behind_a_publication_is_fenced_off() -> None:
    session = Session()
    session.is_dirty = True
    call = session.control(b"!/bus/stats")
    assert sent(session) == [pong(1), b"CMSG !/bus/stats", pong(2)]
    session.receive(ERROR)
    assert not call.is_done
    session.receive(pong(1))
    session.receive(b"CMSG !/bus/stats\0{}")
    assert call.result() == b"{}"
    with pytest.raises(RemoteRefusal, match="refused a packet: EPERM no"):
        session.refusals.raise_oldest()
    session.refusals.raise_oldest()


def test_a_ping_reports_earlier_errors() -> None:
    session = Session()
    session.is_dirty = True
    call = session.ping()
    assert sent(session) == [pong(1)]
    session.receive(ERROR)
    with pytest.raises(RemoteRefusal, match="refused a packet"):
        call.result()


def test_rolling_back_removes_accepted_subscriptions() -> None:
    session = Session()
    inbox = session.new_inbox([b"a", b"b", b"c"])
    calls = session.subscribe(inbox)
    sent(session)
    session.receive(pong(1))
    session.receive(ERROR)
    session.roll_back(inbox, calls)
    assert sent(session) == [b"UNSUB a", pong(4)]
    session.receive(pong(2))
    session.receive(pong(3))
    assert sent(session) == [b"UNSUB c", pong(5)]


def test_an_unconfirmed_subscribe_is_undone_only_without_another_subscription() -> None:
    session = Session()
    subscribed(session, b"a")
    inbox = session.new_inbox([b"a", b"b"])
    calls = session.subscribe(inbox)
    sent(session)
    session.receive(b"CMSG !/bus/lost\0003")
    assert sent(session) == [pong(4)]
    session.receive(pong(4))
    assert all(isinstance(call.error, AnswerLost) for call in calls)
    session.roll_back(inbox, calls)
    assert sent(session) == [b"UNSUB b", pong(5)]


def test_messages_of_an_ended_subscription_do_not_reach_the_only_one_left() -> None:
    session = Session()
    gone, _ = subscribed(session, b"gone")
    left, _ = subscribed(session, b"left")
    session.unsubscribe_all(gone)
    assert sent(session) == [b"UNSUB gone", pong(3)]
    session.receive(b"MSG gone\0late")
    session.receive(b"MSG left\0x")
    session.receive(pong(3))
    session.receive(b"MSG left\0y")
    assert [left.take(), left.take(), left.take()] == [Message(b"left", b"x"), Message(b"left", b"y"), None]
    assert session.statistics().unclaimed == 1


def test_a_message_for_the_taker_is_handed_over_unless_it_would_overtake() -> None:
    session = Session()
    inbox, _ = subscribed(session, b"a")
    assert session.receive(b"MSG a\0001", inbox) == Message(b"a", b"1")
    session.receive(b"MSG a\0002")
    assert session.receive(b"MSG a\0003", inbox) is None
    session.receive(b"CMSG !/bus/lost\0001")
    assert [inbox.take() for _ in range(4)] == [Message(b"a", b"2"), Message(b"a", b"3"), Gap(1), None]
    session.receive(b"CMSG !/bus/lost\0001")
    assert session.receive(b"MSG a\0004", inbox) is None
    assert inbox.take() == Gap(1)
    assert session.statistics().delivered == 4


def test_unsubscribe_removes_the_newest_instance() -> None:
    session = Session()
    first, _ = subscribed(session, b"a")
    second, _ = subscribed(session, b"a", b"b")
    session.unsubscribe(b"a")
    assert sent(session)[0] == b"UNSUB a"
    assert (first.patterns, second.patterns) == ([b"a"], [b"b"])
    session.unsubscribe(b"a")
    with pytest.raises(NotSubscribed) as caught:
        session.unsubscribe(b"a")
    assert caught.value.pattern == "a"


def test_a_loss_of_unknown_size_is_reported_and_counted() -> None:
    session = Session()
    inbox, _ = subscribed(session, b"a")
    session.receive(b"CMSG !/bus/lost\0000")
    assert [inbox.take(), inbox.take()] == [Gap(0), None]
    assert (session.statistics().lost_remote, session.statistics().lost_unknown) == (0, 1)


def test_a_loss_is_reported_in_every_subscription() -> None:
    session = Session()
    one, _ = subscribed(session, b"a")
    two, _ = subscribed(session, b"b")
    session.receive(b"MSG a\0")
    session.receive(b"CMSG !/bus/lost\00012")
    session.receive(b"MSG b\0")
    assert [one.take(), one.take()] == [Message(b"a", b""), Gap(12)]
    assert [two.take(), two.take()] == [Gap(12), Message(b"b", b"")]
    assert session.statistics().lost_remote == 12
    assert not session.outgoing


def test_kept_refusals_are_bounded_and_counted() -> None:
    session = Session()
    for _ in range(_KEPT_REFUSALS + 5):
        session.receive(ERROR)
    statistics = session.statistics()
    assert (statistics.refusals, statistics.refusals_dropped) == (_KEPT_REFUSALS + 5, 5)
    assert len(session.refusals) == _KEPT_REFUSALS


@pytest.mark.parametrize(
    "packet", [b"x", b"MSG a", b"SUB a", b"UNSUB a", b"CMSG a", b"CMSG !/bus/lost\0x", b"CMSG !/bus/lost\0", b"CMSG !/bus/lost\0-1"]
)
def test_a_malformed_packet_is_an_error(packet: bytes) -> None:
    with pytest.raises(ProtocolError):
        Session().receive(packet)


def test_an_unknown_control_message_is_counted() -> None:
    session = Session()
    session.receive(b"CMSG !/later\0x")
    session.receive(b"CMSG !/bus/ping\0somebody's")
    assert session.statistics().unclaimed == 2


def test_the_error_for_a_message_names_its_key() -> None:
    session = Session()
    session.receive(b"CMSG !/bus/error\0EPERM refused by rule 1 of f: why\0a/\xff")
    session.receive(b"CMSG !/bus/error\0EPERM no\0")
    session.receive(b"CMSG !/bus/error\0EPERM no")
    assert [refusal.key for refusal in session.refusals] == ["a/\udcff", "", None]
    assert session.refusals[0].words == "refused by rule 1 of f: why"
    assert str(session.refusals[0]) == "the bus refused a message to 'a/\\udcff': EPERM refused by rule 1 of f: why"
    call = session.publish(b"MSG k\0")
    session.receive(b"CMSG !/bus/error\0EPERM no\0k")
    assert isinstance(call.error, RemoteRefusal)
    assert (call.error.key, call.error.request) == ("k", "a message with a receipt")


def test_an_error_of_an_unknown_code_is_printable() -> None:
    session = Session()
    session.receive(b"CMSG !/bus/error\0EWHAT \x1b[31m\nforged line")
    with pytest.raises(RemoteRefusal) as caught:
        session.refusals.raise_oldest()
    assert caught.value.code is None
    assert str(caught.value) == "the bus refused a packet: EWHAT \N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}forged line"


def test_a_new_connection_begins_with_all_subscriptions() -> None:
    session = Session()
    inbox, _ = subscribed(session, b"a", b"b")
    asked = session.control(b"!/bus/stats")
    session.receive(b"CMSG !/bus/error\0ENOBUFS too slow")
    assert session.last_refusal is not None
    assert session.last_refusal.code is ErrorCode.ENOBUFS
    session.disconnected(lambda: Closed("it"))
    assert asked.is_done
    assert not session.outgoing
    session.reconnected(2, 0.25)
    calls = resubscribe(session)
    assert sent(session) == [b"SUB a", pong(4), b"SUB b", pong(5)]
    session.receive(b"MSG a\0first")
    session.receive(pong(4))
    session.receive(pong(5))
    assert [call.error for call in calls] == [None, None]
    assert [inbox.take(), inbox.take()] == [Reconnected(2, 0.25), Message(b"a", b"first")]
    assert session.statistics().reconnects == 1


def test_the_reason_of_the_end_is_reported_once() -> None:
    session = Session()
    session.receive(ERROR)
    session.receive(b"CMSG !/bus/error\0EDQUOT too many")
    session.receive(b"CMSG !/bus/error\0EPROTO bad")
    assert len(session.refusals) == 2
    session.receive(b"CMSG !/bus/error\0EDQUOT too many")
    session.disconnected(lambda: Closed("it"))
    assert [refusal.code for refusal in session.refusals] == [ErrorCode.EPERM, ErrorCode.EDQUOT]


def test_last_words_are_only_the_last() -> None:
    session = Session()
    session.receive(ERROR)
    session.receive(b"MSG a\0")
    assert session.last_refusal is None


def test_oversized_packets_are_rejected_before_anything_is_sent() -> None:
    session = Session()
    session.outgoing.packet_limit = 10
    with pytest.raises(PayloadTooLarge):
        session.subscribe(session.new_inbox([b"a", b"b" * 7]))
    with pytest.raises(PayloadTooLarge):
        session.control(b"!/bus/stats", b"x")
    assert not session.outgoing


def reply(session: Session, packet: bytes) -> None:
    """Answer the barriers in ``outgoing``, behind *packet*."""
    sent = list(session.outgoing)
    session.outgoing.clear()
    session.receive(packet)
    for each in sent:
        if each.startswith(b"CMSG !/bus/ping"):
            session.receive(each)


def test_a_message_with_its_sender() -> None:
    session = Session()
    inbox = session.new_inbox([b"a"])
    session.subscribe(inbox)
    session.receive(b"CMSG !/from/7/!/cred/100/1000/42\0MSG a\0x\0y")
    session.receive(b"MSG a\0plain")
    assert inbox.take() == Message(b"a", b"x\0y", Peer(7, 1000, 100, 42, b"!/cred/100/1000/42"))
    assert inbox.take() == Message(b"a", b"plain")


@pytest.mark.parametrize("packet", [b"CMSG !/from/x\0MSG a\0", b"CMSG !/from/7/!/cred/1/1/1\0SUB a", b"CMSG !/from/7/!/cred/1/1/1\0"])
def test_a_malformed_sender(packet: bytes) -> None:
    with pytest.raises(ProtocolError):
        Session().receive(packet)


def test_modes_are_set_again_on_a_new_connection_the_last_of_each_kind() -> None:
    session = Session()
    for key in (b"order/stack", b"order/random", b"blocking/soft/discard", b"blocking/hard/error", b"sender/on", b"echo/off", b"unknown/x"):
        session.remember_mode(key, b"CMSG " + key)
    session.remember_mode(b"tap/on", b"CMSG tap/on\0a/")
    session.remember_mode(b"tap/off", b"CMSG tap/off")
    session.disconnected(lambda: Disconnected("there"))
    assert resubscribe(session) == []
    expected = {b"order/random", b"blocking/soft/discard", b"blocking/hard/error", b"sender/on", b"echo/off"}
    assert {packet[5:] for packet in session.outgoing} == expected


def test_patterns_under_the_own_address_move_to_the_new_one() -> None:
    session = Session()
    session.ask_address()
    reply(session, b"CMSG !/conn/whoami\0!/conn/3/")
    inbox = session.new_inbox([b"!/conn/3/x", b"plain"])
    session.subscribe(inbox)
    for _ in range(2):
        # The second connection is lost before it is known which address it has.
        session.disconnected(lambda: Disconnected("there"))
        session.outgoing.clear()
        calls = resubscribe(session)
        assert b"SUB !/conn/3/x" not in session.outgoing
    reply(session, b"CMSG !/conn/whoami\0!/conn/9/")
    assert (session.address, inbox.patterns) == (b"!/conn/9/", [b"!/conn/9/x", b"plain"])
    assert next(iter(session.outgoing)) == b"SUB !/conn/9/x"
    assert len(calls) == 3
    session.receive(b"MSG !/conn/9/x\0y")
    assert inbox.take() == Message(b"!/conn/9/x", b"y")


def test_a_malformed_address() -> None:
    session = Session()
    session.ask_address()
    with pytest.raises(ProtocolError):
        session.receive(b"CMSG !/conn/whoami\0elsewhere")


def test_a_publication_with_receipt() -> None:
    session = Session()
    call = session.publish(b"MSG a\0x")
    assert list(session.outgoing)[:2] == [b"CMSG receipt/always\0" + call.token, b"MSG a\0x"]
    reply(session, b"CMSG !/bus/receipt\0" + call.token + b"\x004")
    assert call.recipients == 4


def test_a_refused_publication_with_receipt() -> None:
    session = Session()
    call = session.publish(b"MSG a\0x")
    session.receive(b"CMSG !/bus/error\0EPERM a rule")
    reply(session, b"CMSG !/bus/receipt\0" + call.token + b"\x000")
    with pytest.raises(RemoteRefusal, match="EPERM a rule"):
        call.result()
    assert not session.refusals


def test_a_batch_is_not_kept_for_the_sake_of_a_small_part_of_it() -> None:
    """Else a queue of small messages could hold many times the memory that its bound allows."""
    session = Session()
    inbox, _ = subscribed(session, b"a")
    other = b"CMSG !/bus/receipt\0" + b"x" * 1_000
    session.receive(join_batch([b"MSG a\x001", other, b"MSG a\x002", b"MSG a\x003"]))
    assert not any(isinstance(item, MessageRun) for item in inbox.items)
    session.receive(join_batch([b"MSG a\0" + b"4" * 50, b"MSG a\0" + b"5" * 50, b"CMSG !/bus/receipt\0x"]))
    assert [isinstance(item, MessageRun) for item in inbox.items] == [False, False, False, True]
    assert [item.payload[:1] for item in inbox.take_many(10) if isinstance(item, Message)] == [b"1", b"2", b"3", b"4", b"5"]


def takes_batches(session: Session) -> bool | None:
    return session.outgoing.takes_batches


def test_each_feature_is_requested_once() -> None:
    session = Session(batching=True)
    assert takes_batches(session) is False
    session.ask_for_batches()
    session.ask_for_batches()
    assert sent(session) == [b"CMSG !/bus/features", pong(1)]
    assert takes_batches(session) is None
    session.receive(b"CMSG !/bus/features\0ping\nbatch\nbatches")
    assert takes_batches(session)
    session.receive(pong(1))
    session.disconnected(lambda: Disconnected("there"), is_final=False)
    assert takes_batches(session) is False, "the next bus may be another"
    session.ask_for_batches()
    session.receive(b"CMSG !/bus/error\0ENOSYS no")
    session.receive(pong(2))
    assert takes_batches(session) is False
    assert session.statistics().batchless == 1
    Session().ask_for_batches()


def test_an_answer_that_is_lost_says_nothing_of_batches() -> None:
    session = Session(batching=True)
    session.ask_for_batches()
    session.receive(b"CMSG !/bus/lost\x001")
    session.receive(pong(1))
    session.receive(pong(2))
    assert takes_batches(session) is False
    assert session.statistics().batchless == 0
    sent(session)
    session.ask_for_batches()
    assert b"CMSG !/bus/features" in sent(session)


def test_only_the_bus_can_send_a_batch() -> None:
    """What another user writes stays payload, however it is delivered."""
    forged = join_batch([b"CMSG !/bus/lost\x009", b"MSG a\0forged"])
    session = Session()
    inbox, _ = subscribed(session, b"a")
    session.receive(b"MSG a\0" + forged)
    session.receive(b"CMSG !/from/7/!/cred/1/2/3\0MSG a\0" + forged)
    session.receive(join_batch([b"MSG a\0" + forged, b"MSG a\0"]))
    assert [item.payload for item in inbox.take_many(9) if isinstance(item, Message)] == [forged, forged, forged, b""]
    assert session.statistics().lost_remote == 0
    with pytest.raises(ProtocolError):
        session.receive(b"CMSG !/from/7/!/cred/1/2/3\0" + forged)


def test_replaced_messages_are_reported_in_every_subscription_and_counted() -> None:
    session = Session()
    one, _ = subscribed(session, b"a")
    two, _ = subscribed(session, b"b")
    session.receive(b"CMSG !/bus/replaced\00012")
    session.receive(b"MSG b\0")
    assert [one.take(), one.take()] == [Replaced(12), None]
    assert [two.take(), two.take()] == [Replaced(12), Message(b"b", b"")]
    assert (session.statistics().replaced, session.statistics().lost_remote) == (12, 0)
    with pytest.raises(ProtocolError, match="!/bus/replaced"):
        session.receive(b"CMSG !/bus/replaced\0many")


def members_of(session: Session, count: int) -> list[Inbox]:
    members = [session.new_inbox([b"jobs/\0g"]) for _ in range(count)]
    for member in members:
        session.subscribe(member)
    for packet in sent(session):
        if packet.startswith(b"CMSG !/bus/ping"):
            session.receive(packet)
    return members


def test_each_message_of_a_group_goes_to_one_member_of_the_connection() -> None:
    session = Session()
    one, two = members_of(session, 2)
    for number in range(4):
        session.receive(b"CMSG !/group/g\0MSG jobs/a\0%d" % number)
    assert [len(one), len(two)] == [2, 2]
    session.unsubscribe_all(one)
    assert sent(session)[:1] == [b"CMSG group/leave\0g\0jobs/"]
    assert [item.payload for item in two.take_many(9) if isinstance(item, Message)] == [b"1", b"3", b"0", b"2"]
    assert session.statistics().delivered == 4
    session.receive(b"CMSG !/group/g\0MSG jobs/a\0late")
    assert two.take() == Message(b"jobs/a", b"late")


def test_what_a_drained_member_leaves_goes_to_the_others_and_wakes_them() -> None:
    session = Session()
    one, two = members_of(session, 2)
    session.receive(b"CMSG !/group/g\0MSG jobs/a\0first")
    session.drain(one)
    leave, barrier = sent(session)
    assert leave == b"CMSG group/leave\0g\0jobs/"
    session.receive(barrier)
    assert one.is_drained
    session.unsubscribe_all(one)
    assert two.take() == Message(b"jobs/a", b"first")
    (barrier,) = sent(session)  # the answer wakes a thread that waits for packets
    assert barrier.startswith(b"CMSG !/bus/ping")
    session.unsubscribe_all(one)
    assert sent(session) == []
