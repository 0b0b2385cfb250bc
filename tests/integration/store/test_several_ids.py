"""A user with the ids that subuid(5) gives for containers has in the store what one user has, and the rights of each id alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.store.conftest import STREAMS, MakeCaller
from tests.support import skips
from tests.support.daemons import Daemon
from tests.support.relays import wait_for
from tests.support.store_programs import StoreCaller, StoreProgram
from tests.support.users import FIRST, SECOND

FIRST_ID, IDS = 61_200, 8

OWN_SUBUID = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/subuid && exec "$@"')
"""Runs a program with a subuid(5) of its own."""

KIB = 1 << 10


@pytest.fixture
def store(bus: Daemon, tmp_path: Path, needs_root: None) -> Iterator[StoreProgram]:
    """A store for which the second user has some ids more."""
    skips.require(Path("/etc/subuid").exists(), "needs /etc/subuid: install the package passwd", could_run=True)
    subuid = tmp_path / "subuid"
    subuid.write_text(f"{SECOND.uid}:{FIRST_ID}:{IDS}\n")
    text = STREAMS.replace('max_bytes_per_user = "1MiB"', 'max_bytes = "3MiB"\nmax_bytes_per_user = "1MiB"')
    with StoreProgram(tmp_path, bus.path, text, (*OWN_SUBUID, str(subuid))) as made:
        yield made


@pytest.fixture
def identities(mallory: StoreCaller, caller: MakeCaller) -> list[StoreCaller]:
    """Callers with all ids of the second user."""
    others = [caller(replace(SECOND, uid=FIRST_ID + number)) for number in range(IDS)]

    def is_known() -> bool:
        others[0].put("net/probe", b"x")
        return any(each["users"] for each in mallory.call("streams")["streams"] if each["name"] == "state")

    wait_for(is_known, "the ids of the second user")  # the store reads the file on a thread
    return [mallory, *others]


def test_many_ids_push_out_nothing_that_another_user_has_stored(alice: StoreCaller, identities: list[StoreCaller]) -> None:
    own = [alice.put("log/alice", bytes(100 * KIB)) for _ in range(9)]
    stored, codes = 0, set()
    for each in identities:
        for _ in range(10):
            found = each.call("put", [(b"log/b", bytes(100 * KIB))])
            stored += found["seqs"] != [0]
            codes |= {code for code, _ in found.head.get("errors", {}).values()}
    assert stored == 10
    assert codes == {"EDQUOT"}
    assert alice.call("read", stream="log", pattern="log/alice", max=9)["messages"][0]["seq"] == own[0][0]

    def usage() -> list[tuple[int, int]]:
        (found,) = [each["users"] for each in identities[-1].call("streams")["streams"] if each["name"] == "log"]
        return [(each["uid"], each["messages"]) for each in found]

    wait_for(lambda: usage() == [(SECOND.uid, 10)], "the figures, which are some seconds old")


def test_many_ids_have_the_jobs_readers_and_calls_of_one_user(alice: StoreCaller, identities: list[StoreCaller]) -> None:
    alice.put("mail/a", *[b"%d" % number for number in range(20)])
    taken = [len(each.call("take", queue="mail", max=2).payloads) for each in identities[:4]]
    assert taken == [2] * 4
    assert identities[4].error("take", queue="mail") == f"EDQUOT user {SECOND.uid} has 8 jobs, the maximum; finish some first"
    for each in identities[:4]:
        each.call("position", stream="log", reader="r", seq=1)
    assert identities[4].error("position", stream="log", reader="r", seq=1).startswith(f"EDQUOT user {SECOND.uid} has 4 readers")
    assert len(alice.call("take", queue="mail", max=8).payloads) == 8


def test_an_id_has_its_own_rights_and_is_the_sender(alice: StoreCaller, identities: list[StoreCaller], caller: MakeCaller) -> None:
    second, inside = identities[:2]
    inside.put("net/inside", b"mine")
    (message,) = alice.call("last", patterns=["net/inside"])["messages"]
    assert message["uid"] == FIRST_ID
    assert second.call("forget", stream="state", keys=["net/inside"])["count"] == 0
    assert inside.call("forget", stream="state", keys=["net/inside"])["count"] == 1
    assert caller(FIRST).put("private/a", b"x")
    assert inside.error("read", stream="private").startswith(f"EACCES user {FIRST_ID} may not")
