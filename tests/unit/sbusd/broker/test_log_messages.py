"""The messages' ids are good ones, and each message can be filled."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from sbus_programs.systemd.log_records import LogMessage
from sbusd.broker import log_messages as messages
from sbusd.broker.log_messages import MESSAGES


def test_every_message_is_listed() -> None:
    defined = {name for name, value in vars(messages).items() if isinstance(value, LogMessage)}
    assert len(MESSAGES) == len(defined) > 10


def test_no_two_messages_share_an_id_or_a_name() -> None:
    for attribute in ("id", "name", "template"):
        counts = Counter(getattr(each, attribute) for each in MESSAGES)
        assert max(counts.values()) == 1


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_an_id_is_a_random_uuid_in_hex(message: LogMessage) -> None:
    assert re.fullmatch(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}", message.id)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_a_template_is_one_line_with_plain_names_in_braces(message: LogMessage) -> None:
    assert message.template.isprintable()
    names = re.findall(r"\{(.*?)\}", message.template)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names)
    assert message.template.format(**dict.fromkeys(names, "x"))
    # No fact has the name of another field of the journal.
    assert not set(names) & {"peer_uid", "peer_pid", "connection", "key", "event", "traceback"}


def test_a_name_is_its_constants() -> None:
    for name, value in vars(messages).items():
        if isinstance(value, LogMessage):
            assert value.name == name.lower().replace("_", "-")
