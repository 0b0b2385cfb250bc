"""Blobs that other hosts pull: which questions are answered, and that descriptors are closed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sbus.blobs import Reply
from sbus.errors import BlobRefused, NoBlobService
from sbus.protocol.blobs import CHUNK_BYTES, Reference, new_ticket
from sbus.protocol.framed_data import parse_framed_data
from sbus_services.link import blobs
from sbus_services.link.blob_tickets import EVERY_HOST, BlobTickets
from sbus_services.link.blobs import IDLE_SECONDS, MAX_OPEN, BlobSource
from sbus_services.link.exchange import ExchangeError
from tests.support.blob_programs import sealed
from tests.support.link_bodies import run_of

DATA = bytes(range(256)) * 1024 * 2 + b"end"


class Service:
    """An sbus-blob that has one blob under every ticket."""

    def __init__(self) -> None:
        self.requests: list[dict[str, object]] = []
        self.error: Exception | None = None
        self.size = len(DATA)

    async def exchange(self, members: dict[str, object]) -> Reply:
        self.requests.append(members)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return Reply({"size": self.size, "type": "text/plain", "expire": 30.0}, sealed(DATA))


def descriptors() -> int:
    """Return the number of open memory files of this process."""
    found = 0
    for each in os.listdir("/proc/self/fd"):
        try:
            found += "memfd:" in os.readlink(f"/proc/self/fd/{each}")
        except OSError:
            continue
    return found


def run_with(test: Callable[[BlobSource, Service, list[str]], Awaitable[None]], count: int = 1, max_bytes: int = 1 << 30) -> None:
    """Run *test* with a source, its service, and *count* tickets that have crossed; then nothing is open."""
    before = descriptors()

    async def run() -> None:
        tickets = BlobTickets(lambda: 0.0)
        names = [new_ticket() for _ in range(count)]
        for name in names:
            tickets.note("alpha", run_of(b"cam/x", Reference(name, 1, "text/plain", "alpha", 1.0).encode()), max_bytes, (EVERY_HOST,))
        service = Service()
        source = BlobSource("alpha", tickets, service)
        await test(source, service, names)
        source.close()
        while descriptors() > before:  # a thread may still compute a digest
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert descriptors() == before


async def digest_of(source: BlobSource, ticket: str) -> dict[str, Any]:
    """Return the digest of a blob, when it is computed."""
    while True:
        try:
            return parse_framed_data(await source.answer("beta", {"ask": "digest", "ticket": ticket}))[0]
        except ExchangeError as error:
            if error.code != "EAGAIN":
                raise


async def failure(source: BlobSource, question: dict[str, Any]) -> tuple[str, str]:
    """Return the code and the words of a refused question."""
    with pytest.raises(ExchangeError) as refused:
        await source.answer("beta", question)
    return refused.value.code, refused.value.words


def test_a_blob_is_opened_once_and_read_in_chunks() -> None:
    async def test(source: BlobSource, service: Service, names: list[str]) -> None:
        (ticket,) = names
        opened = [parse_framed_data(await answer)[0] for answer in [source.answer("beta", {"ask": "open", "ticket": ticket})] * 1]
        assert opened[0] == {"size": len(DATA), "type": "text/plain", "expire": pytest.approx(30, abs=1)}
        questions = [source.answer("beta", {"ask": "read", "ticket": ticket, "offset": each}) for each in range(0, len(DATA), CHUNK_BYTES)]
        answers = [parse_framed_data(each) for each in await asyncio.gather(*questions)]
        assert b"".join(frames[0] for _, frames in answers) == DATA
        assert [head["offset"] for head, _ in answers] == [0, CHUNK_BYTES, 2 * CHUNK_BYTES]
        digest = await digest_of(source, ticket)
        assert digest == {"sha256": hashlib.sha256(DATA).hexdigest()}
        assert len(service.requests) == 1
        assert source.bytes_out == len(DATA)

    run_with(test)


def test_concurrent_questions_are_one_use() -> None:
    async def test(source: BlobSource, service: Service, names: list[str]) -> None:
        await asyncio.gather(*(source.answer("beta", {"ask": "open", "ticket": names[0]}) for _ in range(9)))
        assert len(service.requests) == 1
        await source.answer("gamma", {"ask": "open", "ticket": names[0]})
        assert len(service.requests) == 2
        assert not source._locks

    run_with(test)


@pytest.mark.parametrize("offset", [-1, -CHUNK_BYTES, 1, len(DATA), 3 * CHUNK_BYTES, 1 << 70, 1.0, True, None, "0", [0]])
def test_an_offset_that_is_not_one(offset: object) -> None:
    async def test(source: BlobSource, service: Service, names: list[str]) -> None:
        code, words = await failure(source, {"ask": "read", "ticket": names[0], "offset": offset})
        assert (code, "offset must be a multiple" in words) == ("EINVAL", True)

    run_with(test)


def test_questions_that_are_not_valid() -> None:
    async def test(source: BlobSource, service: Service, names: list[str]) -> None:
        for ticket in (None, 5, "", "x" * 26, names[0].upper(), f"{names[0]}/.."):
            assert (await failure(source, {"ask": "open", "ticket": ticket}))[0] == "EINVAL"
        for ask in (None, 5, "", "drop", ["open"]):
            assert (await failure(source, {"ask": ask, "ticket": names[0]}))[0] == "EINVAL"
        code, words = await failure(source, {"ask": "open", "ticket": new_ticket()})
        assert (code, words.startswith("no message from this host")) == ("ENOENT", True)
        assert not service.requests, "the guesses of another host are not those of the link"

    run_with(test)


def test_what_sbus_blob_refuses_is_refused() -> None:
    async def test(source: BlobSource, service: Service, names: list[str]) -> None:
        question = {"ask": "open", "ticket": names[0]}
        for error, code in (
            (BlobRefused("EACCES", "not-for-user", "no"), "EACCES"),
            (BlobRefused("ENOENT", "gone", "it has expired"), "ENOENT"),
            (BlobRefused("EAGAIN", "guessing", "later"), "EAGAIN"),
            (NoBlobService("/x", "it does not run"), "EAGAIN"),
        ):
            service.error = error
            assert (await failure(source, question))[0] == code
        service.error, service.size = None, len(DATA) + 1
        assert (await failure(source, question))[0] == "EIO"
        assert len(source) == 0

    run_with(test)


def test_a_blob_above_max_blob() -> None:
    async def test(source: BlobSource, service: Service, names: list[str]) -> None:
        code, words = await failure(source, {"ask": "open", "ticket": names[0]})
        assert (code, words) == ("EFBIG", f"the blob has {len(DATA)} bytes; max_blob is 1000")

    run_with(test, max_bytes=1000)


def test_a_host_has_a_bounded_number_of_open_blobs() -> None:
    async def test(source: BlobSource, service: Service, names: list[str]) -> None:
        for name in names:
            await source.answer("beta", {"ask": "open", "ticket": name})
            await source.answer("beta", {"ask": "open", "ticket": names[0]})  # used again and again, so it stays
        assert len(source) == MAX_OPEN
        assert len(service.requests) == len(names)

    run_with(test, count=MAX_OPEN + 5)


def test_all_hosts_have_a_bounded_number_of_open_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "MAX_OPEN_OF_ALL", 6)

    async def test(source: BlobSource, service: Service, names: list[str]) -> None:
        await source.answer("beta", {"ask": "open", "ticket": names[0]})
        for name in names:
            await source.answer("gamma", {"ask": "open", "ticket": name})
        assert len(source) == 6
        await source.answer("beta", {"ask": "open", "ticket": names[0]})
        assert len(service.requests) == 11, "the other host keeps its own"

    run_with(test, count=10)


def test_idle_blobs_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(source: BlobSource, service: Service, names: list[str]) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await source.answer("beta", {"ask": "open", "ticket": names[0]})
        source.close_idle()
        assert len(source) == 1
        monkeypatch.setattr(loop, "time", lambda: begin + IDLE_SECONDS + 1)
        source.close_idle()
        assert len(source) == 0
        monkeypatch.undo()

    run_with(test)
