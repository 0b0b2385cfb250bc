"""One owner of each host name: the second is refused with an error that names both."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from sbus_archive.storage.ownership import HostTakenError, Owner, Ownership
from sbus_archive.storage.store import LocalStore

FIRST, SECOND = Owner("1" * 32, "machine-a", "/archive/a", "3" * 32), Owner("2" * 32, "machine-b\x1b", "/archive/b", "")


def claim(store: LocalStore, owner: Owner, host: str = "alpha") -> Ownership:
    return Ownership(store, host, owner, "Replace it")


def test_a_name_belongs_to_its_first_owner(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first, second = claim(store, FIRST), claim(store, SECOND)
    first.take()
    mark = store.read("hosts/alpha.json", 1_000)
    claim(store, dataclasses.replace(FIRST, archive="/archive/moved")).take()
    assert store.read("hosts/alpha.json", 1_000) == mark
    claim(store, SECOND, "beta").take()
    with pytest.raises(HostTakenError) as caught:
        second.take()
    assert str(caught.value).startswith(
        f"{tmp_path}/hosts/alpha.json: host alpha belongs to machine machine-a with archive /archive/a, id 11111111…,"
        " machine identity 33333333…;"
        " this is machine machine-b\\x1b with archive /archive/b, id 22222222…, machine identity unknown."
    )
    first.check()
    second.take(by_force=True)
    with pytest.raises(HostTakenError, match="machine-b"):
        first.check()


def test_a_missing_or_invalid_mark_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(HostTakenError, match="belongs to no machine"):
        claim(store, FIRST).check()
    for content in (b"", b"[]", b'{"id": 1}', b"[" * 5_000):
        store.put("hosts/alpha.json", io.BytesIO(content))
        with pytest.raises(HostTakenError, match=r"invalid mark of the owner of host alpha\. Replace it"):
            claim(store, FIRST).take()
    claim(store, FIRST).take(by_force=True)
    claim(store, FIRST).take()


def test_a_missing_mark_is_an_error_if_segments_are_listed(tmp_path: Path) -> None:
    ownership = claim(LocalStore(tmp_path), FIRST)
    with pytest.raises(HostTakenError, match=r"alpha\.json: missing, although 3 segments are listed as shipped"):
        ownership.take(3)
    assert list(tmp_path.iterdir()) == []
    ownership.take(3, by_force=True)
    ownership.take(3)


def test_one_wrong_reading_of_the_mark_is_not_an_invalid_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    ownership = claim(store, FIRST)
    ownership.take()
    read, wrong = store.read, [b"{", b""]
    monkeypatch.setattr(store, "read", lambda name, limit: wrong.pop() if wrong else read(name, limit))
    ownership.check()
    assert wrong == []


def test_a_copy_of_a_machine_with_the_same_list_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    claim(store, FIRST).take()
    with pytest.raises(HostTakenError, match=r"machine identity 33333333…; this is .*, machine identity 44444444…"):
        claim(store, dataclasses.replace(FIRST, identity="4" * 32)).take()


def test_a_later_start_takes_the_name_from_an_earlier_one(tmp_path: Path) -> None:
    """A copy of a machine can have the same machine-id(5) too: at least they do not write at the same time."""
    store = LocalStore(tmp_path)
    earlier, later = (claim(store, dataclasses.replace(FIRST, run=run)) for run in ("5" * 32, "6" * 32))
    earlier.take()
    earlier.hold()
    later.take()
    later.hold()
    with pytest.raises(HostTakenError, match=r"which started later and has the identity of this one, .* Replace it"):
        earlier.hold()


def test_a_mark_that_was_deleted_is_written_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first, second = claim(store, FIRST), claim(store, SECOND)
    first.take()
    store.delete("hosts/alpha.json")
    first.hold()
    with pytest.raises(HostTakenError):
        second.hold()
    store.delete("hosts/alpha.json")
    second.hold()
    with pytest.raises(HostTakenError):
        first.hold()
