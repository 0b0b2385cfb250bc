"""Streams and last values of the engine against a plain model, with errors within transactions and with reopening of the file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus_programs.config.store import StoreLimits, StoreSettings, StreamSettings
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import NOWHERE, EngineError, NewMessage, PutResult, Sender
from tests.support.examples import examples
from tests.support.store_clocks import OneClock
from tests.support.store_model import StreamModel

STREAMS = (
    StreamSettings("log", ("log/", "one"), max_messages=7, max_bytes=1_500, max_bytes_per_user=1_000, retain=10.0),
    StreamSettings("state", ("state/",), last=1, max_keys=4, max_keys_per_user=3, max_bytes=900, max_bytes_per_user=600),
    StreamSettings("some", ("some/*/x",), last=2, max_keys=3, max_keys_per_user=2, max_messages=5, retain=7.0),
    StreamSettings("all", ("all/",)),
)
SETTINGS = StoreSettings(streams=STREAMS, limits=StoreLimits(readers=3))
KEYS = {
    "log": [b"log/", b"log/a", b"log/a/b", b"one", b"state/a", b"log/\xff\x01"],
    "state": [b"state/a", b"state/b", b"state/c", b"state/c\x01", b"state/d/e", b"state/"],
    "some": [b"some/a/x", b"some/b/x", b"some//x", b"some/cc/x", b"some/a/y"],
    "all": [b"all/a", b"all/b", b"all/\xfe"],
}
PATTERNS = [b"", b"log/", b"log/a", b"*/a", b"state/", b"state/c*", b"some/a/", b"some/*/x", b"all/", b"nothing"]
NAMES = [each.name for each in STREAMS]
UIDS = [0, 1000, 1001]


@st.composite
def messages(draw: st.DrawFn, name: str) -> NewMessage:
    """Return a message for the stream *name*; the time of its expiry is relative."""
    uid = draw(st.sampled_from(UIDS))
    payload = b"p" * draw(st.sampled_from([0, 1, 50, 200, 700, 1_600]))
    expires = draw(st.sampled_from([0, 0, 0, 1_000, 5_000]))
    put_id = draw(st.sampled_from([b"", b"", b"i", b"\xff\x01"]))
    return NewMessage(draw(st.sampled_from(KEYS[name])), payload, Sender(uid, uid, 7), put_id, expires_ms=expires)


def of_streams(action: Callable[[str], st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Return one of the strategies that *action* returns for the streams."""
    return st.sampled_from(NAMES).flatmap(action)


PUT = of_streams(lambda name: st.tuples(st.just("put"), st.just(name), st.lists(messages(name), min_size=1, max_size=6)))
ACTIONS = st.one_of(
    PUT,
    PUT,
    PUT,
    st.tuples(
        st.just("gap"), st.sampled_from(NAMES), st.sampled_from([b"log/", b"state/a"]), st.integers(0, 3), st.sampled_from(["r", "é"])
    ),
    st.tuples(st.just("wait"), st.sampled_from([1, 999, 1_000, 4_000, 3_600_000])),
    st.tuples(st.just("sweep")),
    of_streams(lambda name: st.tuples(st.just("forget"), st.just(name), st.sampled_from(KEYS[name]), st.sampled_from([None, *UIDS]))),
    st.tuples(st.just("purge"), st.sampled_from(NAMES), st.sampled_from([None, 0, 3, 10]), st.sampled_from(PATTERNS)),
    st.tuples(st.just("reader"), st.sampled_from(NAMES), st.sampled_from(UIDS), st.sampled_from("ab"), st.integers(-1, 5)),
    st.tuples(st.just("begin")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("undo"), PUT, st.sampled_from(NAMES), st.sampled_from(PATTERNS)),
    st.tuples(st.just("reopen")),
)


class UndoneError(Exception):
    """An operation that fails on purpose."""


class Machine:
    """An engine and its models."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_700_000_000_000
        self.path = folder / "store.sqlite"
        self.places = NOWHERE
        self.engine = self.opened()
        self.models = {each.name: StreamModel(each) for each in STREAMS}

    def opened(self) -> Engine:
        return Engine(self.path, SETTINGS, OneClock(lambda: self.now), min_free_bytes=0)

    def act(self, action: tuple[Any, ...]) -> None:
        getattr(self, f"act_{action[0]}")(*action[1:])

    def act_put(self, name: str, new: list[NewMessage]) -> None:
        new = self.absolute(new)
        results = self.engine.put_many(name, new)
        assert [each if isinstance(each, PutResult) else each.code for each in results] == self.models[name].put_many(new, self.now)

    def absolute(self, new: list[NewMessage]) -> list[NewMessage]:
        """Return messages with an absolute time of expiry."""
        return [NewMessage(e.key, e.payload, e.sender, e.id, 0, e.expires_ms and self.now + e.expires_ms) for e in new]

    def act_gap(self, name: str, pattern: bytes, count: int, reason: str) -> None:
        self.engine.add_gap(name, pattern, count, reason)
        self.models[name].add_gap(pattern, count, reason, self.now)

    def act_wait(self, duration: int) -> None:
        self.now += duration

    def act_sweep(self) -> None:
        before = sum(model.removed for model in self.models.values())
        removed, more = 0, True
        while more:
            sweep = self.engine.sweep(3, self.places)
            self.places = sweep.places
            removed += sweep.removed
            more = sweep.more
        for model in self.models.values():
            model.sweep(self.now)
        assert removed == sum(model.removed for model in self.models.values()) - before

    def act_forget(self, name: str, key: bytes, uid: int | None) -> None:
        found = self.engine.forget(name, key, uid, max_rows=2)
        count = found.count
        while found.more:
            found = self.engine.forget(name, key, uid, found.next_seq, max_rows=2)
            count += found.count
        assert count == self.models[name].forget(key, uid)

    def act_purge(self, name: str, before_seq: int | None, pattern: bytes) -> None:
        found = self.engine.purge(name, before_seq, pattern, max_rows=2)
        count = found.count
        while found.more:
            found = self.engine.purge(name, before_seq, pattern, max_rows=2, from_seq=found.next_seq)
            count += found.count
        assert count == self.models[name].purge(before_seq, pattern)

    def act_reader(self, name: str, uid: int, reader: str, seq: int) -> None:
        """Set a reader, or drop it."""
        readers = self.models[name].readers
        if seq < 0:
            assert self.engine.drop_reader(name, uid, reader) == (readers.pop((uid, reader), None) is not None)
            return
        mine = sum(user == uid for model in self.models.values() for user, _ in model.readers)
        if mine >= 3 and (uid, reader) not in readers:
            with pytest.raises(EngineError, match="EDQUOT"):
                self.engine.set_reader(name, uid, reader, seq)
        else:
            self.engine.set_reader(name, uid, reader, seq)
            readers[uid, reader] = seq

    def act_begin(self) -> None:
        if not self.engine.in_transaction:
            self.engine.begin()

    def act_commit(self) -> None:
        if self.engine.in_transaction:
            self.engine.commit()

    def act_undo(self, put: tuple[str, str, list[NewMessage]], name: str, pattern: bytes) -> None:
        """Do something in an operation that fails: then nothing has happened."""

        def fail() -> None:
            with self.engine.database.operation():
                self.engine.put_many(put[1], self.absolute(put[2]))
                self.engine.purge(name, None, pattern)
                self.engine.add_gap(name, pattern, 1, "undone")
                raise UndoneError

        with pytest.raises(UndoneError):
            fail()

    def act_reopen(self) -> None:
        self.act_commit()
        self.engine.close()
        self.engine = self.opened()

    def check(self) -> None:
        """Compare all that the engine shows with the models."""
        statistics = {each.name: each for each in self.engine.statistics().streams}
        for name, model in self.models.items():
            figures = statistics[name]
            messages = model.messages
            assert (figures.messages, figures.bytes, figures.last_seq) == (len(messages), model.size, model.last_seq)
            assert (figures.gaps, figures.removed) == (len(model.items) - len(messages), model.removed)
            assert figures.first_seq == (model.items[0].seq if model.items else model.last_seq + 1)
            keys = model.keys() if model.settings.last else {}
            assert figures.keys == sum(keys.values())
            assert {each.uid: each.keys for each in figures.users if each.keys} == {uid: count for uid, count in keys.items() if count}
            assert {each.uid: each.messages for each in figures.users if each.messages} == {
                uid: sum(each.sender.uid == uid for each in messages) for uid in {each.sender.uid for each in messages}
            }
            assert self.engine.readers(name) == [(uid, reader, seq) for (uid, reader), seq in sorted(model.readers.items())]
            for pattern, from_seq in ((b"", 0), (b"", 3), (b"log/a", 1), (b"*/a", 4), (b"some/*/x", 0)):
                assert self.read_all(name, from_seq, pattern) == model.read(from_seq, pattern, self.now)
            for pattern in (b"", b"*/a", b"some/*/x"):
                assert self.last_all(name, pattern) == model.last(pattern, self.now)

    def read_all(self, name: str, from_seq: int, pattern: bytes) -> list[Any]:
        """Return the whole stream, by small pages."""
        found: list[Any] = []
        page = self.engine.read(name, from_seq, 2, 300, pattern)
        found += page.items
        while page.next_seq <= page.last_seq:
            page = self.engine.read(name, page.next_seq, 2, 300, pattern)
            found += page.items
        return found

    def last_all(self, name: str, pattern: bytes) -> list[Any]:
        """Return all last values, by small pages."""
        page = self.engine.last(name, pattern, None, 2, 300)
        found = list(page.items)
        while page.next_key is not None:
            page = self.engine.last(name, pattern, page.next_key, 2, 300)
            found += page.items
        return found


@settings(max_examples=examples(150))
@given(st.lists(ACTIONS, min_size=1, max_size=30))
def test_streams_behave_as_lists(actions: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder))
        try:
            for action in actions:
                machine.act(action)
                machine.check()
            machine.act_reopen()
            machine.check()
        finally:
            machine.engine.close()
