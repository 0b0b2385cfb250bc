"""The errors for rejected messages: which rule, which key, and in which place. Spec: sbus-protocol(7) §8."""

from __future__ import annotations

from sbusd.dataplane.contract import PublishRule
from tests.support.switch_harness import SwitchHarness


def test_a_refused_message_has_the_error_of_its_rule_and_its_key(harness: SwitchHarness) -> None:
    """The first rule about the client decides; the rules of others are not disclosed to it."""
    sender = harness.connect()
    rules = (
        PublishRule(b"lab/", False, b"of others"),
        PublishRule(b"lab/", False, b"of lab"),
        PublishRule(b"", False),
        PublishRule(b"lab/x", False, b"never"),
    )
    harness.switch.set_publish_rules(rules)
    harness.switch.set_party(sender, 1000, rules=0b1110)
    keys = [b"lab/x", b"other", b"", b"lab/" + b"x" * 1_018, b"lab/" + b"x" * 4_000, b"!/conn/9/lab/y"]
    for key in keys:
        harness.send(sender, b"MSG %b\0payload" % key)
    harness.run()
    default = b"CMSG !/bus/error\0POLICY"
    expected = [b"of lab\0lab/x", default + b"\0other", default + b"\0", *[b"of lab\0" + key[:1_024] for key in keys[3:5]]]
    assert harness.receive(sender) == [*expected, default + b"\0!/conn/9/lab/y"]
    harness.switch.set_publish_rules((PublishRule(b"lab/", True), PublishRule(b"!/conn/9/", True), PublishRule(b"lab/", False, b"new")))
    harness.switch.set_party(sender, 1000, rules=0b110)
    harness.send(sender, b"MSG !/conn/9/lab/y\0")
    harness.send(sender, b"MSG lab/z\0")
    harness.run()
    assert harness.receive(sender) == [b"new\0!/conn/9/lab/y", b"new\0lab/z"], "a rule about the key after an address, too"


def test_refusals_that_wait_in_a_queue_keep_their_keys() -> None:
    """In their order, and each is charged to the queue of the client that caused it."""
    harness = SwitchHarness()
    sender = harness.connect()
    harness.switch.set_party(sender, 1000, rules=1)
    harness.switch.set_publish_rules((PublishRule(b"", False, b"denied " * 20),))
    count = 0
    while harness.switch.user_counters(1000).queued_packets < 200:
        for _ in range(64):
            harness.send(sender, b"MSG %d/%b\0" % (count, b"k" * 900))
            count += 1
        harness.run()
    assert harness.switch.user_counters(1000).queued_bytes > 200 * 1_000
    received = harness.drain(sender)
    assert received == [b"denied " * 20 + b"\x00%d/" % number + b"k" * 900 for number in range(count)]
    harness.close()
