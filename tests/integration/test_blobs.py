"""Large messages between real users: by the client library, through sbus-blob and a bus."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus import (
    AsyncBus,
    BlobGone,
    BlobMessage,
    BlobRefused,
    Bus,
    Closed,
    Gap,
    Message,
    MessagesMissing,
    NoBlobService,
    ProtocolError,
    raise_missing,
)
from sbus.protocol.blobs import Reference, new_ticket
from tests.support.blob_programs import BlobProgram, sealed
from tests.support.blob_sharing import shared_by_users
from tests.support.daemons import Daemon
from tests.support.skips import require
from tests.support.users import FIRST, SECOND, User

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")

TEXT = '[quotas]\nbytes = "64MiB"\n[rights]\npass = { users = ["root", "61001", "61002"] }\n'


SHARES_BUS = True


@pytest.fixture
def service(bus: Daemon, folder: Path) -> Iterator[BlobProgram]:
    with BlobProgram(folder, bus.path, TEXT) as program:
        yield program


@pytest.fixture(autouse=True)
def _may_be_users() -> None:
    require(os.geteuid() == 0, "needs root, to be several users", could_run=True)


def _reason_of(client: Bus, ticket: str) -> str:
    """Get a blob until it is gone, and return the reason."""
    while True:
        try:
            client.get_blob(ticket)
        except BlobRefused as error:
            return error.reason


def test_a_blob_crosses_users_without_a_copy_in_the_service(service: BlobProgram, bus: Daemon) -> None:
    data = os.urandom(1 << 20) * 20

    def publish() -> int:
        with Bus.connect(bus.path) as publisher:
            publisher.publish_blob("camera/front", data, type="image/jpeg", keep=True)
        return os.getpid()

    with Bus.connect(bus.path) as subscriber, subscriber.subscribe("camera/", blobs=True) as frames:
        pid = FIRST.call(publish)
        message = next(iter(frames))
    assert isinstance(message, BlobMessage)
    assert message.blob == data
    assert message.blob.readonly
    assert (message.key, message.media_type, message.owner[:3]) == ("camera/front", "image/jpeg", (pid, FIRST.uid, FIRST.gid))
    assert service.memory()["RssShmem"] < 1_024


@pytest.mark.parametrize("kind", ["bytes", "text", "path", "file", "memfd", "empty"])
def test_everything_that_can_be_published(service: BlobProgram, bus: Daemon, tmp_path: Path, kind: str) -> None:
    content = b"" if kind == "empty" else b"content"
    (tmp_path / "file").write_bytes(content)
    with Bus.connect(bus.path) as client, client.subscribe("a", blobs=True) as blobs:
        with open(tmp_path / "file", "rb") as file, os.fdopen(sealed(content), "rb") as memfd:
            given = {"bytes": content, "text": "content", "path": tmp_path / "file", "file": file, "memfd": memfd, "empty": b""}[kind]
            client.publish_blob("a", given)  # type: ignore[arg-type]  # each of them is one
        message = blobs.receive(30)
        assert isinstance(message, BlobMessage)
        assert bytes(message.blob) == content


def test_what_cannot_be_published(service: BlobProgram, bus: Daemon, tmp_path: Path) -> None:
    with Bus.connect(bus.path) as client:
        with pytest.raises(TypeError, match="not int"):
            client.publish_blob("a", 5)  # type: ignore[arg-type]
        with pytest.raises(FileNotFoundError):
            client.publish_blob("a", tmp_path / "none")
        with pytest.raises(ProtocolError, match="NUL"):
            client.publish_blob("a\0", b"x")
        with pytest.raises(BlobRefused, match="type must be a media type") as refused:
            client.publish_blob("a", b"x", type="none")
        assert (refused.value.code, refused.value.cause) == ("EINVAL", "invalid")
        with pytest.raises(BlobRefused, match="maximum"):
            client.publish_blob("a", bytes(65 << 20))
    with service.client() as raw:
        assert raw.request("list")[0]["blobs"] == []


def test_ordinary_messages_arrive_as_they_are(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a", blobs=True) as blobs:
        for payload in (b"plain", b'{"sbus-blob":1}', b'{"sbus-blob":2,"ticket":"x"}'):
            client.publish("a", payload)
            message = blobs.receive(30)
            assert isinstance(message, Message)
            assert (message.payload, message.blob) == (payload, None)


def test_without_blobs_the_reference_is_an_ordinary_message(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a") as messages:
        ticket = client.publish_blob("a", b"data", expire=60)
        message = messages.receive(30)
        assert isinstance(message, Message)
        facts = message.json()
        assert (facts["sbus-blob"], facts["ticket"], facts["size"], facts["host"]) == (1, ticket, 4, os.uname().nodename)
        assert 0 < facts["until"] - time.time() < 61
        assert bytes(client.get_blob(ticket).data) == b"data"


def test_an_ended_blob_is_reported_in_its_place(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a", blobs=True) as blobs:
        client.drop_blob(client.publish_blob("a", b"dropped"))
        client.publish("a", b"next")
        gone, following = blobs.receive(30), blobs.receive(30)
        assert isinstance(gone, BlobGone)
        assert isinstance(gone, Gap)
        assert (gone.lost, gone.reason) == (1, "the blob is gone: its owner has dropped it")
        assert isinstance(following, Message)
        assert following.payload == b"next"
        assert client.statistics.blobs_gone == 1
        noted: list[object] = []
    with Bus.connect(bus.path) as client, client.subscribe("a", blobs=True, on_gap=noted.append) as blobs:
        client.drop_blob(client.publish_blob("a", b"dropped"))
        client.publish("a", b"next")
        assert next(iter(blobs)).payload == b"next"
        assert [type(each) for each in noted] == [BlobGone]
    with Bus.connect(bus.path) as client, client.subscribe("a", blobs=True, on_gap=raise_missing) as blobs:
        client.drop_blob(client.publish_blob("a", b"dropped"))
        with pytest.raises(MessagesMissing, match="its owner has dropped it"):
            next(iter(blobs))


@pytest.mark.parametrize(("terms", "reason"), [({"uses": 1}, "all its uses are over"), ({"expire": 0.01}, "it has expired")])
def test_the_reason_says_why(service: BlobProgram, bus: Daemon, terms: dict[str, float], reason: str) -> None:
    with Bus.connect(bus.path) as client:
        ticket = client.publish_blob("a", b"x", **terms)  # type: ignore[arg-type]
        assert reason in _reason_of(client, ticket)


def test_blobs_end_with_their_connection_unless_they_are_kept(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as client:
        tickets = [client.publish_blob("a", b"x", keep=keep) for keep in (False, True)]
    with Bus.connect(bus.path) as client:
        assert "disconnected" in _reason_of(client, tickets[0])
        assert bytes(client.get_blob(tickets[1]).data) == b"x"


def test_a_blob_of_another_host_has_a_clear_reason(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a", blobs=True) as blobs:
        client.publish("a", Reference(new_ticket(), 5, "text/plain", "elsewhere", 1.0).encode())
        gone = blobs.receive(30)
        assert isinstance(gone, BlobGone)
        assert gone.reason == "the blob is on host elsewhere, and no link of this bus serves blobs; see max_blob in link.toml(5)"


def test_a_blob_for_a_user_or_a_connection(service: BlobProgram, bus: Daemon) -> None:
    """Each user gets what is for it, and nothing else."""
    with Bus.connect(bus.path) as client:
        mine = int(client.address.split("/")[2])
        tickets = {
            str(to): client.publish_blob("a", b"x", to=to)
            for to in (FIRST.uid, f"gid:{FIRST.groups[1]}", f"gid:{SECOND.gid}", f"conn:{mine}")
        }
        assert bytes(client.get_blob(tickets[f"conn:{mine}"]).data) == b"x"
        with pytest.raises(BlobRefused, match="another user"):
            client.get_blob(tickets[str(FIRST.uid)])

        def allowed() -> dict[str, bool]:
            found = {}
            with Bus.connect(bus.path) as other:
                for name, ticket in tickets.items():
                    try:
                        found[name] = bytes(other.get_blob(ticket).data) == b"x"
                    except BlobRefused as error:
                        found[name] = error.code != "EACCES"
            return found

        group, both = f"gid:{SECOND.gid}", f"gid:{FIRST.groups[1]}"
        assert FIRST.call(allowed) == {str(FIRST.uid): True, both: True, group: False, f"conn:{mine}": False}
        assert SECOND.call(allowed) == {str(FIRST.uid): False, both: True, group: True, f"conn:{mine}": False}


def test_a_descriptor_is_passed_to_one_user_once(service: BlobProgram, bus: Daemon) -> None:
    reader, writer = os.pipe()
    with Bus.connect(bus.path) as client:
        ticket = client.pass_fd(reader, to=FIRST.uid)
        os.close(reader)
        os.write(writer, b"through a pipe")

        def take(user: User) -> str:
            def run() -> str:
                with Bus.connect(bus.path) as other:
                    try:
                        return os.read(other.take_fd(ticket), 100).decode()
                    except BlobRefused as error:
                        return error.cause

            return user.call(run)

        assert take(SECOND) == "not-for-user"
        assert take(FIRST) == "through a pipe"
        assert take(FIRST) == "gone"
        os.close(writer)
        blob = client.publish_blob("a", b"x")
        with pytest.raises(BlobRefused, match='kind "blob"'):
            client.take_fd(blob)


def test_asyncio_does_the_same(service: BlobProgram, bus: Daemon) -> None:
    async def run() -> None:
        async with AsyncBus.connect(bus.path) as client, client.subscribe("a", blobs=True) as blobs:
            tickets = await asyncio.gather(*(client.publish_blob("a", b"%d" % number) for number in range(20)))
            await client.drop_blob(tickets[3])
            received = [await blobs.receive(30) for _ in range(20)]
            contents = {bytes(each.blob) for each in received if isinstance(each, BlobMessage)}
            assert contents == {b"%d" % number for number in range(20) if number != 3}
            assert [type(each) for each in received].count(BlobGone) == client.statistics.blobs_gone == 1
            reader, writer = os.pipe()
            taken = await client.take_fd(await client.pass_fd(reader, to=os.getuid()))
            os.write(writer, b"x")
            assert os.read(taken, 1) == b"x"
            for fd in (reader, writer, taken):
                os.close(fd)
            await client.publish_blob("a", b"last")
            async for message in blobs:
                assert isinstance(message, BlobMessage)
                assert bytes(message.blob) == b"last"
                break

    asyncio.run(run())


def test_a_cancelled_receive_loses_no_message(service: BlobProgram, bus: Daemon) -> None:
    """It is cancelled at many places; each blob arrives nevertheless."""

    async def run() -> None:
        before = set(os.listdir("/proc/self/fd"))
        async with AsyncBus.connect(bus.path) as client, client.subscribe("a", blobs=True) as blobs:
            for number in range(30):
                await client.publish_blob("a", b"%d" % number)
            received: list[bytes] = []
            turns = 0
            while len(received) < 30:
                task = asyncio.ensure_future(blobs.receive(30))
                for _ in range(turns % 12):
                    await asyncio.sleep(0)
                turns += 1
                # A task that is done is not cancelled any more; one that was cancelled has returned nothing.
                if turns % 2 and task.cancel():
                    await asyncio.gather(task, return_exceptions=True)
                    if task.cancelled():
                        continue
                item = await task
                assert isinstance(item, BlobMessage)
                received.append(bytes(item.blob))
            assert received == [b"%d" % number for number in range(30)]
            del item, task
        assert len(set(os.listdir("/proc/self/fd")) - before) <= 1

    asyncio.run(run())


def test_without_the_service_there_is_a_clear_error(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a", blobs=True) as blobs:
        with pytest.raises(NoBlobService, match=r"no process listens; start sbus-blob for this bus, see sbus-blob\(8\)"):
            client.publish_blob("a", b"x")
        client.publish("a", Reference(new_ticket(), 5, "text/plain", os.uname().nodename, 1.0).encode())
        gone = blobs.receive(30)
        assert isinstance(gone, BlobGone)
        assert "no process listens" in gone.reason


def test_a_killed_service_loses_blobs_and_says_so(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a", blobs=True) as blobs:
        client.publish_blob("a", b"lost", keep=True)
        client.ping()
        service.kill()
        gone = blobs.receive(30)
        assert isinstance(gone, BlobGone)
        assert "no process listens" in gone.reason or "closed the connection" in gone.reason
        service.start()
        client.publish_blob("a", b"new")
        message = blobs.receive(30)
        assert isinstance(message, BlobMessage)
        assert bytes(message.blob) == b"new"


def test_a_client_notices_a_restart_between_put_and_get(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a", blobs=True) as blobs:
        client.publish_blob("a", b"lost")
        service.kill()
        service.start()
        gone = blobs.receive(30)
        assert isinstance(gone, BlobGone)
        assert gone.reason == "unknown ticket: the blob ended long ago, or the service has been restarted"


def test_a_child_process_has_a_connection_of_its_own(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path, reconnect=True) as client:
        ticket = client.publish_blob("a", b"x")

        def use() -> bytes:
            return bytes(client.get_blob(ticket).data)

        assert User(0, 0).call(use) == b"x"
        assert use() == b"x"


def test_four_gibibytes_reach_ten_processes(bus: Daemon, folder: Path) -> None:
    """Nothing is copied: neither the service nor the readers have pages that are not touched."""
    size = 4 << 30
    with BlobProgram(folder, bus.path, f"allow_sparse = true\n[quotas]\nbytes = {size}\n") as service, Bus.connect(bus.path) as client:
        before = service.memory()
        with os.fdopen(sealed(size), "rb") as file:
            ticket = client.publish_blob("big", file, to=f"gid:{FIRST.groups[1]}", expire=600)

        def read() -> tuple[int, bytes]:
            with Bus.connect(bus.path) as other:
                data = other.get_blob(ticket).data
                return len(data), bytes(data[-3:])

        for number in range(10):
            assert (FIRST, SECOND)[number % 2].call(read) == (size, b"\0\0\0")
        after = service.memory()
        assert after["RssShmem"] == before["RssShmem"] == 0
        assert after["VmRSS"] - before["VmRSS"] < 16 << 10


def test_a_closed_bus_is_closed(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as client:
        blobs = client.subscribe("a", blobs=True)
        client.publish_blob("a", b"x")
        blobs.close()
        with pytest.raises(Closed):
            blobs.receive(30)
        assert list(blobs) == []


def test_ten_users_share_the_pages_of_another(service: BlobProgram, bus: Daemon) -> None:
    """``make bench-blob`` does the same with 4 GiB."""
    size = 32 << 20
    shared = shared_by_users(size, 10, bus.path, (bus.pid, service.pid))
    assert shared.mapped >= 10 * size
    assert size * 0.99 <= shared.used <= size * 1.01 + (1 << 20)
    assert shared.servers < 1 << 20
    assert shared.private < 256 << 20


def test_of_an_endless_file_at_most_the_quota_is_read(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, pytest.raises(OSError, match="more than 67108864 bytes, the quota of this user"):
        client.publish_blob("a", Path("/dev/zero"))

    async def publish() -> None:
        async with await AsyncBus.connect(bus.path) as client:
            with pytest.raises(OSError, match="more than 67108864 bytes, the quota of this user"):
                await client.publish_blob("a", Path("/dev/zero"))
            with pytest.raises(FileNotFoundError):
                await client.publish_blob("a", Path("/nonexistent"))
            assert bytes((await client.get_blob(await client.publish_blob("a", Path(__file__)))).data) == Path(__file__).read_bytes()

    asyncio.run(publish())
