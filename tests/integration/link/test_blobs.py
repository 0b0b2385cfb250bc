"""Blobs of another host: pulled through two links, over both networks, by cables that are cut, from hosts that lie."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sbus import BlobGone, BlobMessage, BlobRefused, Bus, Message, RemoteError
from sbus.protocol.blobs import CHUNK_BYTES, parse_reference
from sbus.protocol.framed_data import framed_data
from tests.integration.link.conftest import Realm
from tests.support.blob_hosts import EXPORT, IMPORT, BlobHost, BlobHosts, direct_hosts
from tests.support.nats_servers import require_server
from tests.support.relays import wait_for
from tests.support.skips import require_namespaces, require_root
from tests.support.users import User
from tools.netns_hosts import PREFIX, NetnsHosts

SECONDS = 120.0
PULL = {"timeout": 300.0}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as ends:
        yield ends


@pytest.fixture
def cables(stack: ExitStack) -> NetnsHosts:
    require_root()
    require_namespaces()
    return stack.enter_context(NetnsHosts(1, 2, 3, stem="sbus-blob"))


@pytest.fixture
def direct(cables: NetnsHosts, make_bus: Callable[[], str], tmp_path: Path, stack: ExitStack) -> BlobHosts:
    return direct_hosts(tmp_path, cables, make_bus, stack)


@pytest.fixture
def by_nats(cables: NetnsHosts, make_bus: Callable[[], str], tmp_path: Path, stack: ExitStack) -> BlobHosts:
    realm = stack.enter_context(Realm(require_server("debian"), tmp_path, address=f"{PREFIX}1", namespace=cables.name(1)))

    def host(name: str, number: int) -> BlobHost:
        tls = realm.authority.settings(realm.authority.sign(name))
        return BlobHost(tmp_path, name, make_bus(), network=f'servers = ["{realm.url}"]\n{tls}', namespace=cables.name(number))

    return BlobHosts(cables, host("alpha", 2), host("beta", 3), stack)


@pytest.fixture(params=["by_nats", "direct"])
def hosts(request: pytest.FixtureRequest) -> BlobHosts:
    made = request.getfixturevalue(request.param)
    assert isinstance(made, BlobHosts)
    return made


def crossed(hosts: BlobHosts, data: bytes, key: str = "cam/front", **terms: object) -> tuple[Bus, Message]:
    """Publish *data* on alpha, and return its publisher and the message with the reference on beta."""
    publisher = hosts.stack.enter_context(Bus.connect(hosts.alpha.bus, timeout=SECONDS))
    with Bus.connect(hosts.beta.bus, timeout=SECONDS) as reader:
        messages = reader.subscribe(f"host/alpha/{key}")
        hosts.beta.link.synchronize()
        publisher.publish_blob(key, data, **{"expire": 600.0, **terms})  # type: ignore[arg-type]
        item = messages.receive(SECONDS)
    assert isinstance(item, Message)
    return publisher, item


def get(host: BlobHost, message: Message) -> bytes:
    """Get the blob that *message* refers to. Raises BlobRefused."""
    reference = parse_reference(message.payload)
    assert reference is not None
    with Bus.connect(host.bus, timeout=SECONDS) as bus:
        return bytes(bus.get_blob(reference.ticket, host=reference.host).data)


def reason(host: BlobHost, message: Message) -> str:
    """Return why the blob that *message* refers to cannot be got."""
    with pytest.raises(BlobRefused) as refused:
        get(host, message)
    return f"{refused.value.code} {refused.value.cause} {refused.value.reason}"


def stats(host: BlobHost) -> dict[str, int]:
    """Return what root has used and counted at sbus-blob."""
    with host.blob.client() as client:
        answer = client.request("stats")[0]
    return dict(answer["usage"]) | dict(answer["counters"]) | {f"total-{key}": value for key, value in answer["total"].items()}


def test_subscribers_of_another_host_get_a_blob_that_is_pulled_once(hosts: BlobHosts) -> None:
    hosts.start()
    data = os.urandom(5 * CHUNK_BYTES + 17)
    with Bus.connect(hosts.alpha.bus, timeout=SECONDS) as publisher, ExitStack() as ends:
        readers = [ends.enter_context(Bus.connect(hosts.beta.bus, timeout=SECONDS)) for _ in range(3)]
        streams = [reader.subscribe("host/alpha/cam/", blobs=True) for reader in readers]
        hosts.beta.link.synchronize()
        publisher.publish_blob("cam/front", data, type="image/png")
        publisher.publish_blob("cam/empty", b"")
        found = [stream.receive(SECONDS) for stream in streams for _ in range(2)]
    assert all(isinstance(each, BlobMessage) for each in found), found
    contents = [(each.key, bytes(each.blob), each.media_type, each.owner.uid) for each in found if isinstance(each, BlobMessage)]
    assert contents == 3 * [("host/alpha/cam/front", data, "image/png", -1), ("host/alpha/cam/empty", b"", "application/octet-stream", -1)]
    assert (stats(hosts.beta)["pulled"], stats(hosts.alpha)["get"]) == (2, 2)
    assert stats(hosts.beta)["bytes"] == len(data)
    state = hosts.beta.state()
    assert (state["bytes_in"], state["asks_lost"]) == (len(data), 0)


def test_a_cut_cable_resumes_at_the_offset(hosts: BlobHosts) -> None:
    hosts.start()
    data = os.urandom(64 * CHUNK_BYTES)
    hosts.alpha.limit_rate("16mbit")
    _, message = crossed(hosts, data)
    found: list[bytes] = []
    pulling = threading.Thread(target=lambda: found.append(get(hosts.beta, message)))
    pulling.start()
    wait_for(lambda: hosts.beta.memfd_bytes() >= 4 * CHUNK_BYTES, "the first chunks")
    hosts.cut()
    before = hosts.beta.memfd_bytes()
    assert before < len(data)
    for each in (hosts.alpha, hosts.beta):
        each.link.wait_for_hosts()  # it has noticed that the other one is gone
    hosts.heal()
    pulling.join(300)
    assert [hashlib.sha256(each).digest() for each in found] == [hashlib.sha256(data).digest()]
    state = hosts.beta.state()
    assert len(data) <= state["bytes_in"] < len(data) + before, "what had come was not asked for again"
    assert state["asks_lost"] > 0 or stats(hosts.beta)["pull-repeated"] > 0


@pytest.mark.parametrize("victim", ["alpha's link", "beta's link", "alpha's blob", "beta's blob"])
def test_a_killed_process_is_an_error_or_nothing(direct: BlobHosts, victim: str) -> None:
    """Nothing is left of a pull that has failed, and the next blob is pulled."""
    hosts = direct
    hosts.start()
    hosts.alpha.limit_rate("10mbit")
    data = os.urandom(32 * CHUNK_BYTES)
    publisher, message = crossed(hosts, data)
    found: list[object] = []

    def pull() -> None:
        try:
            found.append(get(hosts.beta, message))
        except Exception as error:
            found.append(str(error))

    pulling = threading.Thread(target=pull)
    pulling.start()
    wait_for(lambda: hosts.beta.memfd_bytes() >= 4 * CHUNK_BYTES, "the first chunks")
    host = hosts.alpha if victim.startswith("alpha") else hosts.beta
    program = host.link if victim.endswith("link") else host.blob
    program.kill()
    program.start()
    pulling.join(300)
    if victim == "alpha's blob":
        assert found == [data], "alpha's link has the blob open"
    elif victim == "beta's blob":
        assert "cannot use sbus-blob" in str(found[0])
    else:
        assert found == [data] or "the link was restarted" in str(found[0]), found
    if found != [data]:
        wait_for(lambda: hosts.beta.memfds() == {}, "that nothing is left")
        assert stats(hosts.beta)["bytes"] == stats(hosts.beta)["total-pulled-bytes"] == 0
    publisher.close()
    for each in (hosts.alpha, hosts.beta):
        each.link.wait_for_hosts("beta" if each is hosts.alpha else "alpha")
    _, message = crossed(hosts, b"again")
    assert get(hosts.beta, message) == b"again"


LIES = {
    "digest": "EBADMSG digest",
    "content": "EBADMSG digest",
    "short": "EREMOTEIO not-pulled host alpha sent a chunk of another size",
    "offset": "EREMOTEIO not-pulled host alpha sent another chunk",
    "frames": "EREMOTEIO not-pulled host alpha sent another chunk",
    "huge": "EREMOTEIO not-pulled the blob has 4611686018427387904 bytes; max_blob for host alpha is",
    "negative": "EREMOTEIO not-pulled the answer of host alpha does not describe a blob",
    "type": "EREMOTEIO not-pulled the answer of host alpha does not describe a blob",
    "expire": "EREMOTEIO not-pulled the answer of host alpha does not describe a blob",
    "garbage": "EREMOTEIO not-pulled the answer of host alpha is malformed",
    "error": "EREMOTEIO not-pulled host alpha: ",
}
"""What a host sends instead of its blob, and what the user gets."""


def test_a_host_that_lies_gets_an_error_and_no_memory(direct: BlobHosts, tmp_path: Path) -> None:
    lie = tmp_path / "lie"
    direct.alpha.configure(program=("tests.support.hostile_link", str(lie)))
    direct.start()
    for mode, expected in LIES.items():
        lie.write_text(mode)
        _, message = crossed(direct, os.urandom(2 * CHUNK_BYTES + 1))
        text = reason(direct.beta, message)
        assert text.startswith(expected), (mode, text)
        assert text.isprintable()
        wait_for(lambda: direct.beta.memfds() == {}, f"that nothing is left after {mode}")
        found = stats(direct.beta)
        assert (found["bytes"], found["blobs"], found["total-pulled"]) == (0, 0, 0), mode
        assert direct.beta.link.process is not None
        assert direct.beta.link.process.poll() is None, mode


def test_rules_of_both_hosts_decide(direct: BlobHosts) -> None:
    """Which keys, which sizes, and no blob at all without max_blob."""
    rules = '[[export]]\nkeys = "cam/"\nmax_blob = "1MiB"\n[[export]]\nkeys = "small/"\nmax_blob = "2MiB"\n[[export]]\nkeys = "closed/"\n'
    imports = '[[import]]\nkeys = "small/"\nmax_blob = "1KiB"\n[[import]]\nkeys = "shut/"\n' + IMPORT
    direct.alpha.configure(rules=rules + '[[export]]\nkeys = "shut/"\nmax_blob = "1MiB"\n' + IMPORT)
    direct.beta.configure(rules=EXPORT + imports)
    direct.start()
    there, here = "host alpha: no message", "no message from host alpha"
    for key, size, origin in (("closed/x", 5, there), ("shut/x", 5, here), ("small/x", 2_000, here)):
        _, message = crossed(direct, bytes(size), key)
        text = reason(direct.beta, message)
        assert text.startswith("ENOENT not-there"), text
        assert origin in text, (key, text)
    _, message = crossed(direct, bytes((1 << 20) + 1))
    assert reason(direct.beta, message).startswith("ENOENT not-there host alpha: no message")
    _, message = crossed(direct, bytes(1 << 20))
    assert get(direct.beta, message) == bytes(1 << 20)


def test_a_host_without_imports_of_blobs_has_no_command_for_them(direct: BlobHosts) -> None:
    direct.beta.configure(rules='[[import]]\nkeys = ""\n')
    direct.start()
    _, message = crossed(direct, b"x")
    assert reason(direct.beta, message).startswith("EHOSTUNREACH no-link the blob is on host alpha, and no link")
    with Bus.connect(direct.beta.bus, timeout=SECONDS) as reader, Bus.connect(direct.alpha.bus) as publisher:
        stream = reader.subscribe("host/alpha/cam/", blobs=True)
        direct.beta.link.synchronize()
        publisher.publish_blob("cam/x", b"x")
        item = stream.receive(SECONDS)
    assert isinstance(item, BlobGone)
    assert "no link of this bus serves blobs" in item.reason


def test_only_what_has_crossed_can_be_pulled(direct: BlobHosts, first_user: User) -> None:
    """A ticket alone is not enough, and users cannot ask the link themselves."""
    direct.start()
    with Bus.connect(direct.alpha.bus, timeout=SECONDS) as publisher:
        with publisher.subscribe("local/") as local:
            publisher.publish_blob("local/x", b"secret", keep=True)
            item = local.receive(SECONDS)
        assert isinstance(item, Message)
        assert reason(direct.beta, item).startswith("ENOENT not-there no message from host alpha")
        for uid in (0, 1):  # a blob for users of alpha is not for those of beta, whatever their numbers are
            _, message = crossed(direct, b"for one", to=uid + 7)
            assert reason(direct.beta, message).startswith("EREMOTEIO not-pulled host alpha: the blob is for another user")
    path, reference = direct.beta.bus, parse_reference(item.payload)
    assert reference is not None
    data = framed_data({"ask": "open", "host": "alpha", "ticket": reference.ticket})

    def call() -> str:
        with Bus.connect(path) as bus:
            try:
                bus.call("link/blob", data)
            except RemoteError as error:
                return error.words
        return "answered"

    assert first_user.call(call).startswith("EACCES only sbus-blob may call link/blob")


def test_the_user_who_pulls_pays(direct: BlobHosts, first_user: User, second_user: User) -> None:
    """Quotas of one user do not concern another one, and the room of all is divided between users."""
    direct.beta.configure(blob='max_pulled = "1MiB"\n[quotas]\nbytes = "1MiB"\nblobs = 2\n')
    direct.start()
    messages = [crossed(direct, bytes([number]) * (300 << 10), keep=True)[1] for number in range(4)]
    path = direct.beta.bus

    def pull(numbers: list[int]) -> list[str]:
        outcomes = []
        with Bus.connect(path, timeout=SECONDS) as bus:
            for number in numbers:
                reference = parse_reference(messages[number].payload)
                assert reference is not None
                try:
                    outcomes.append(str(bus.get_blob(reference.ticket, host="alpha").data[0]))
                except BlobRefused as refused:
                    outcomes.append(refused.cause)
        return outcomes

    assert first_user.call(lambda: pull([0, 1, 2])) == ["0", "1", "quota-blobs"]
    assert second_user.call(lambda: pull([0, 1])) == ["0", "1"], "they are here already, and cost nothing"
    assert second_user.call(lambda: pull([2])) == ["2"]
    assert stats(direct.beta)["total-pulled-bytes"] == 900 << 10
    assert second_user.call(lambda: pull([3])) == ["quota-pulled"], "the first user has no more than the second would have"


def test_a_stopped_host_is_an_error_in_the_end(direct: BlobHosts) -> None:
    direct.beta.configure(constants={"sbus_services.blob.remote.STALL_SECONDS": 2.0})
    direct.start()
    _, message = crossed(direct, b"x", expire=600)
    os.kill(direct.alpha.link.pid, signal.SIGSTOP)
    try:
        assert reason(direct.beta, message).startswith("EHOSTUNREACH unreachable host alpha was not reached for 2 s")
    finally:
        os.kill(direct.alpha.link.pid, signal.SIGCONT)


def test_messages_are_not_delayed_by_a_pull(hosts: BlobHosts) -> None:
    """Answers are sent only while little waits for the network, so no message is lost behind them."""
    hosts.start()
    hosts.alpha.limit_rate("80mbit")
    _, message = crossed(hosts, os.urandom(64 * CHUNK_BYTES))
    found: list[bytes] = []
    pulling = threading.Thread(target=lambda: found.append(get(hosts.beta, message)))
    with Bus.connect(hosts.beta.bus, timeout=SECONDS) as reader, Bus.connect(hosts.alpha.bus) as publisher:
        stream = reader.subscribe("host/alpha/closed/")
        hosts.beta.link.synchronize()
        pulling.start()
        wait_for(lambda: hosts.beta.memfd_bytes() >= CHUNK_BYTES, "the first chunk")
        for number in range(20):
            publisher.publish("closed/x", b"%d" % number)
            item = stream.receive(SECONDS)
            assert isinstance(item, Message)
            assert item.payload == b"%d" % number
        pulling.join(300)
    assert len(found) == 1
