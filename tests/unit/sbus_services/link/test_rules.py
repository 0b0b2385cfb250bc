"""Rules, and values that they reject."""

from __future__ import annotations

import pytest

from sbus_services.link.rules import Export, Import, Rules


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (b"", "must be literal"),
        (b"*/x", "must be literal"),
        (b"/x", "must be literal"),
        (b"!/event/", "never leave"),
        (b"host/a/", "never leave"),
        (b"rpc/", "never leave"),
        (b"relay/x", "never leave"),
        (b"relayed/", "never leave"),
        (b"net/*x/", "matches no key"),
    ],
)
def test_keys_that_cannot_leave_are_an_error(keys: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Export(keys)
    with pytest.raises(ValueError, match=says):
        Import(keys, shared=True)


def test_values_out_of_range_are_an_error() -> None:
    for make in (
        lambda: Export(b"net/", rate=0),
        lambda: Export(b"net/", max_payload=-1),
        lambda: Export(b"net/", frozenset({"a.b"})),
        lambda: Import(b"a*b"),
        lambda: Rules("R.", "a"),
        lambda: Rules("R", ""),
        lambda: Rules("R", "a", spool_bytes=-1),
        lambda: Rules("R", "a", secret_hosts=frozenset({"*"})),
    ):
        with pytest.raises(ValueError, match="invalid"):
            make()


def test_the_first_rule_that_matches_decides() -> None:
    secret, other, named, rest = Export(b"net/secret/", frozenset({"b"})), Export(b"net/"), Import(b"x/", frozenset({"b"})), Import(b"")
    rules = Rules("R", "a", (secret, other), (named, rest))
    assert (rules.export_of(b"net/secret/x"), rules.export_of(b"net/x"), rules.export_of(b"rpc/x")) == (secret, other, None)
    assert (rules.import_of("b", b"x/1"), rules.import_of("c", b"x/1"), rules.import_of("b", b"host/c/x")) == (named, rest, None)
    assert (secret.permits("b"), secret.permits("c"), other.permits("c")) == (True, False, True)
    assert not rules.exchanges_secrets("b")
