"""One shipper for each host name: the second is refused with an error that names both."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from sbusd.archive.storage.local import LocalStore
from sbusd.shipping.ownership import HostTakenError, Owner, Ownership

FIRST, SECOND = Owner("1" * 32, "machine-a", "/archive/a", "3" * 32), Owner("2" * 32, "machine-b\x1b", "/archive/b", "")


def test_a_name_belongs_to_its_first_shipper(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first, second = Ownership(store, "alpha", FIRST), Ownership(store, "alpha", SECOND)
    first.take()
    first.take()
    Ownership(store, "beta", SECOND).take()
    with pytest.raises(HostTakenError) as caught:
        second.take()
    assert str(caught.value).startswith(
        f"{tmp_path}/hosts/alpha.json: host alpha is shipped by machine machine-a with archive /archive/a, id 11111111…,"
        " machine identity 33333333…;"
        " this is machine machine-b\\x1b with archive /archive/b, id 22222222…, machine identity unknown."
    )
    first.check()
    second.take(by_force=True)
    with pytest.raises(HostTakenError, match="machine-b"):
        first.check()


def test_a_missing_or_invalid_mark_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(HostTakenError, match="is shipped by no machine"):
        Ownership(store, "alpha", FIRST).check()
    for content in (b"", b"[]", b'{"id": 1}', b"[" * 5_000):
        store.put("hosts/alpha.json", io.BytesIO(content))
        with pytest.raises(HostTakenError, match="invalid mark of a shipper"):
            Ownership(store, "alpha", FIRST).take()
    Ownership(store, "alpha", FIRST).take(by_force=True)
    Ownership(store, "alpha", FIRST).take()


def test_a_missing_mark_is_an_error_if_segments_are_listed(tmp_path: Path) -> None:
    ownership = Ownership(LocalStore(tmp_path), "alpha", FIRST)
    with pytest.raises(HostTakenError, match=r"alpha\.json: missing, although 3 segments are listed as shipped"):
        ownership.take(3)
    assert list(tmp_path.iterdir()) == []
    ownership.take(3, by_force=True)
    ownership.take(3)


def test_one_wrong_reading_of_the_mark_is_not_an_invalid_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    ownership = Ownership(store, "alpha", FIRST)
    ownership.take()
    read, wrong = store.read, [b"{", b""]
    monkeypatch.setattr(store, "read", lambda name, limit: wrong.pop() if wrong else read(name, limit))
    ownership.check()
    assert wrong == []


def test_a_copy_of_a_machine_with_the_same_list_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    Ownership(store, "alpha", FIRST).take()
    with pytest.raises(HostTakenError, match=r"machine identity 33333333…; this is .*, machine identity 44444444…"):
        Ownership(store, "alpha", dataclasses.replace(FIRST, identity="4" * 32)).take()


def test_the_identity_is_that_of_this_machine() -> None:
    owner = Owner.of_this_machine("1", "a", "/a")
    assert owner == Owner.of_this_machine("1", "a", "/a")
    machine_id = Path("/etc/machine-id")
    assert not machine_id.exists() or machine_id.read_text().strip() != owner.identity or not owner.identity
