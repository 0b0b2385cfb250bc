from __future__ import annotations

from sbus.protocol import controls


def names() -> dict[str, bytes]:
    """Return every control by the name it has in the module."""
    return {name: value for name, value in vars(controls).items() if name.isupper() and isinstance(value, bytes)}


def test_the_names_are_those_of_the_protocol() -> None:
    """They are the wire: a change here is a change of the protocol."""
    assert names() == {
        "WHOAMI": b"!/cred/whoami",
        "FEATURES": b"!/bus/features",
        "PING": b"!/bus/ping",
        "STATS": b"!/bus/stats",
        "TOTALS": b"!/bus/totals",
        "CONNECTIONS": b"!/bus/connections",
        "USERS": b"!/bus/users",
        "SUBSCRIPTIONS": b"!/bus/subscriptions",
        "TRACE": b"!/bus/trace",
        "EXPLAIN": b"!/bus/explain",
        "ADDRESS": b"!/conn/whoami",
        "MEMBERS": b"!/bus/members",
        "ECHO_ON": b"echo/on",
        "ECHO_OFF": b"echo/off",
        "RECEIPT_ALWAYS": b"receipt/always",
        "RECEIPT_RECIPIENTS": b"receipt/recipients",
        "RECEIPT_UNDELIVERABLE": b"receipt/undeliverable",
        "SENDER_ON": b"sender/on",
        "SENDER_OFF": b"sender/off",
        "TAP_ON": b"tap/on",
        "TAP_OFF": b"tap/off",
        "ORDER_QUEUE": b"order/queue",
        "ORDER_FAIR": b"order/fair",
        "PACE_ON": b"pace/on",
        "PACE_OFF": b"pace/off",
        "NAME": b"name",
        "GROUP_JOIN": b"group/join",
        "GROUP_LEAVE": b"group/leave",
        "LOST_FOR": b"lost/for",
        "TO": b"!/to/",
        "BATCH_ON": b"batch/on",
        "BATCH_OFF": b"batch/off",
        "BATCH": b"!/batch",
        "ERROR": b"!/bus/error",
        "LOST": b"!/bus/lost",
        "REPLACED": b"!/bus/replaced",
        "RECEIPT": b"!/bus/receipt",
        "FROM": b"!/from/",
        "GROUP": b"!/group/",
        "TAP": b"!/tap",
    }


_COMMANDS = ("ECHO_", "RECEIPT_", "SENDER_", "TAP_", "ORDER_", "PACE_", "LOST_", "BATCH_", "GROUP_", "NAME")


def test_keys_of_replies_and_notifications_are_reserved_and_those_of_commands_are_not() -> None:
    for name, value in names().items():
        assert value.startswith(b"!/") is not name.startswith(_COMMANDS)
