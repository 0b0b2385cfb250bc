"""What subscribed workers say of their jobs, byte by byte."""

from __future__ import annotations

import pytest

from sbus_services.store.subscribed_worker import Settlement, SettlementError, parse_settlement
from sbus_services.store.subscribed_workers import _queue_of


@pytest.mark.parametrize(
    ("key", "payload", "found"),
    [
        (b"store/job/mail/17/ack", b"", Settlement("mail", 17, "ack")),
        (b"store/job/mail/17/ack", b"ignored", Settlement("mail", 17, "ack")),
        (b"store/job/mail/17/retry", b"\n", Settlement("mail", 17, "retry")),
        (b"store/job/mail/17/retry", b" 1.5\n", Settlement("mail", 17, "retry", 1_500)),
        (b"store/job/mail/17/retry", b"0", Settlement("mail", 17, "retry", 0)),
        (b"store/job/mail/17/extend", b"60", Settlement("mail", 17, "extend", 60_000)),
        (b"store/job/mail/17/fail", b"no\xff\n", Settlement("mail", 17, "fail", reason="no\ufffd")),
        ("store/job/für alle/1/ack".encode(), b"", Settlement("für alle", 1, "ack")),
    ],
)
def test_valid_messages(key: bytes, payload: bytes, found: Settlement) -> None:
    assert parse_settlement(key, payload) == found


@pytest.mark.parametrize(
    ("key", "payload", "words"),
    [
        (b"store/job/", b"", "must be store/job/<queue>/<lease>/<verb>"),
        (b"store/job/mail/17", b"", "must be store/job/<queue>/<lease>/<verb>"),
        (b"store/job/mail/17/ack/", b"", "must be store/job/<queue>/<lease>/<verb>"),
        (b"store/job/mail/-1/ack", b"", "invalid lease '-1'"),
        (b"store/job/mail//ack", b"", "invalid lease ''"),
        ("store/job/mail/١/ack".encode(), b"", "invalid lease"),
        (b"store/job/mail/1234567890123456789/ack", b"", "invalid lease"),
        (b"store/job/mail/1/Ack", b"", "unknown verb 'Ack'; valid are: ack, retry, fail, extend"),
        (b"store/job/mail/1/extend", b"0.01", "a number of seconds from 0.1"),
        (b"store/job/mail/1/retry", b"nan", "a number of seconds from 0"),
        (b"store/job/mail/1/retry", b"1e300", "a number of seconds from 0"),
        (b"store/job/mail/1/retry", b"1\x000", "a number of seconds from 0"),
    ],
)
def test_invalid_messages_say_what_is_valid(key: bytes, payload: bytes, words: str) -> None:
    with pytest.raises(SettlementError, match="EINVAL") as caught:
        parse_settlement(key, payload)
    assert words in caught.value.words
    assert caught.value.queue == key.decode().split("/")[2]


@pytest.mark.parametrize(
    ("pattern", "queue"),
    [
        (b"queue/mail/", "mail"),
        (b"queue/mail", ""),
        (b"queue/mail/1/", ""),
        (b"queue//", ""),
        (b"queue/", ""),
        (b"", ""),
        (b"queue/*/", ""),
        (b"queue/m*/", ""),
        (b"queue/\xff/", ""),
        (b"other/mail/", ""),
        ("queue/für alle/".encode(), "für alle"),
    ],
)
def test_which_subscription_makes_a_worker(pattern: bytes, queue: str) -> None:
    assert _queue_of(pattern) == queue
