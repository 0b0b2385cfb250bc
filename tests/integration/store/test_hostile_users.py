"""What a hostile user cannot learn, forge, block or exhaust of another user's messages in the store."""

from __future__ import annotations

import base64
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sbus import Bus, Gap, Message, Reconnected, SbusError
from sbus.protocol.envelope import Envelope, service_key
from sbus.protocol.framed_data import framed_data, message_frame
from tests.integration.store.conftest import MakeCaller
from tests.support.store_programs import StoreCaller, StoreProgram
from tests.support.users import FIRST, SECOND

SECONDS = 60.0


def test_what_a_rule_hides_is_hidden_in_every_call(alice: StoreCaller, mallory: StoreCaller) -> None:
    alice.put("private/a", b"secret")
    refused = [
        mallory.error("read", stream="private"),
        mallory.error("read", stream="private", pattern="private/a"),
        mallory.error("read", stream="private", pattern="*/a"),
        mallory.error("read", stream="private", pattern="log/"),  # it may subscribe to that, and would get the last number of the stream
        mallory.error("peek", stream="private"),
        mallory.error("position", stream="private", reader="r", seq=1),
        mallory.error("last", patterns=["private/"]),
        mallory.error("last", patterns=["net/", ""]),
        mallory.error("forget", stream="private", keys=["private/a"]),
    ]
    assert [words.partition(" ")[0] for words in refused] == ["EACCES"] * len(refused)
    assert not any("secret" in words for words in refused)
    found = mallory.call("put", [(b"private/a", b"forged"), (b"log/a", b"own")])
    assert (found["seqs"][0], found["errors"]["0"][0]) == (0, "EACCES")
    assert "private" not in {each["name"] for each in mallory.call("streams")["streams"]}
    assert alice.call("read", stream="private").payloads == [b"secret"]


def test_nobody_else_works_on_the_jobs_of_a_worker(alice: StoreCaller, mallory: StoreCaller, caller: MakeCaller) -> None:
    alice.put("mail/a", b"job")
    (lease,) = alice.call("take", queue="mail").leases
    other = caller(FIRST)
    for thief in (mallory, other):
        for name in ("ack", "retry", "fail", "extend"):
            for forged in (lease, lease + 1, 1 << 62):
                errors = thief.call(name, queue="mail", leases=[forged])["errors"]
                assert [code for code, _ in errors.values()] == ["ESTALE"]
    assert alice.call("ack", queue="mail", leases=[lease]).head == {}


def test_a_queue_with_workers_by_name_admits_only_them(alice: StoreCaller, mallory: StoreCaller) -> None:
    alice.put("own/a", b"job")
    assert mallory.error("take", queue="own").startswith("EACCES ")
    assert alice.call("take", queue="own").payloads == [b"job"]


def test_only_owners_purge_and_revive_and_users_forget_their_own(alice: StoreCaller, mallory: StoreCaller, caller: MakeCaller) -> None:
    alice.put("net/a", b"mine")
    for name, head in (
        ("purge", {"stream": "log"}),
        ("purge", {"queue": "mail", "seqs": [1]}),
        ("revive", {"queue": "mail", "seqs": [1]}),
        ("acknowledge", {}),
    ):
        assert mallory.error(name, **head).startswith("EACCES ")
    assert mallory.call("forget", stream="state", keys=["net/a"])["count"] == 0
    assert alice.call("last", patterns=["net/a"]).payloads == [b"mine"]
    assert caller(None).call("forget", stream="state", keys=["net/a"])["count"] == 1


def test_readers_of_the_same_name_belong_to_their_users(alice: StoreCaller, mallory: StoreCaller) -> None:
    alice.put("log/a", b"1", b"2")
    alice.call("position", stream="log", reader="r", seq=2)
    assert mallory.error("position", stream="log", reader="r").startswith("ENOENT ")
    mallory.call("position", stream="log", reader="r", drop=True)
    assert alice.call("position", stream="log", reader="r")["seq"] == 2
    assert alice.error("position", stream="log", reader="r", seq=0).startswith("EINVAL ")


def test_ids_of_different_users_do_not_collide(alice: StoreCaller, mallory: StoreCaller) -> None:
    assert mallory.put("log/a", b"forged", id="order-1") == [1]
    assert alice.put("log/a", b"real", id="order-1") == [2]


def test_a_full_quota_is_that_of_its_user(alice: StoreCaller, mallory: StoreCaller) -> None:
    codes: set[str] = set()
    while not codes:
        found = mallory.call("put", [(b"log/a", bytes(100_000))] * 2)
        codes = {code for code, _ in found.head.get("errors", {}).values()}
    assert codes == {"EDQUOT"}
    alice.put("log/a", bytes(100_000))
    # Ordinary messages beyond it are gaps, which one user cannot multiply.
    for _ in range(100):
        mallory.bus.publish("log/b", bytes(10_000))
    mallory.bus.ping()
    alice.bus.publish("log/after", "here")
    alice.bus.ping()
    place, found_gaps, payloads = 1, 0, []
    while b"here" not in payloads:
        page = alice.call("read", stream="log", from_=place, wait=30)
        place = page["next"]
        payloads += page.payloads
        found_gaps += sum("gap" in each for each in page["messages"])
    assert 1 <= found_gaps <= 100


def test_leases_waiting_calls_readers_and_puts_have_limits(
    store: StoreProgram, alice: StoreCaller, mallory: StoreCaller, caller: MakeCaller
) -> None:
    alice.put("mail/a", *[b"%d" % number for number in range(20)])
    assert len(mallory.call("take", queue="mail", max=64).payloads) == 8
    assert mallory.error("take", queue="mail").startswith("EDQUOT ")
    assert len(alice.call("take", queue="mail", max=64).payloads) == 8
    for number in range(4):
        mallory.call("position", stream="log", reader=f"r{number}", seq=1)
    assert mallory.error("position", stream="log", reader="one-more", seq=1).startswith("EDQUOT ")
    alice.call("position", stream="log", reader="r", seq=1)

    def wait(own: StoreCaller) -> str:
        try:
            own.call("read", stream="log", from_="new", wait=2)
        except SbusError as error:
            return getattr(error, "words", "")
        return ""

    with ThreadPoolExecutor(12) as threads:
        words = list(threads.map(wait, [caller(SECOND) for _ in range(12)]))
    assert any(each.startswith("EDQUOT ") for each in words)
    alice.put("log/a", b"1")
    assert alice.call("read", stream="log", from_="first", wait=5).payloads[-1] == b"1"
    state = json.loads(alice.bus.call("store/status", timeout=SECONDS))
    assert state["refused"]["waiting_calls"] > 0


def test_a_caller_that_never_reads_its_responses_does_not_delay_others(alice: StoreCaller, store: StoreProgram) -> None:
    for _ in range(5):
        alice.put("log/a", *[bytes(10_000)] * 10)
    raw = SECOND.connect(store.bus)
    # Requests on a connection whose responses are never read.
    raw.send(b"CMSG !/conn/whoami\0")
    number = raw.recv(1_000).split(b"/")[4]
    raw.send(b"SUB !/conn/%b/ret/" % number)
    envelope = {"ver": 1, "cmd": "store/read", "ret": f"!/conn/{int(number)}/ret/x"}
    data = base64.b64encode(framed_data({"stream": "log", "from": "first"})).decode()
    raw.settimeout(5)
    for attempt in range(500):
        packet = json.dumps(envelope | {"uid": f"u{attempt}", "dat": data}).encode()
        try:
            raw.send(b"MSG rpc/store/read\0" + packet)
        except OSError:
            break
    assert len(alice.call("read", stream="log", from_="first").payloads) > 1
    alice.put("log/a", b"still")
    raw.close()


def test_patterns_that_find_nothing_do_not_starve_others(alice: StoreCaller, mallory: StoreCaller) -> None:
    for _ in range(8):
        alice.call("put", [(b"log/%d" % number, b"x") for number in range(250)])
    done = threading.Event()

    def scan() -> None:
        while not done.is_set():
            assert mallory.call("read", stream="log", from_="first", pattern="log/none").payloads == []

    thread = threading.Thread(target=scan)
    thread.start()
    try:
        for _ in range(20):
            alice.put("log/a", b"x")
    finally:
        done.set()
        thread.join(SECONDS)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"[]",
        b"null",
        b'{"stream":7}',
        b'{"stream":"log","max":-1}',
        b'{"stream":"log","wait":1e99}',
        b'{"stream":"log","from":true}',
        b'{"stream":"log"}\0\xff\xff\xff\xff',
        b"[" * 100_000,
        framed_data({"stream": "log"}, [message_frame(b"", b"")] * 200) + b"\1",
    ],
)
def test_requests_without_sense_get_an_error(mallory: StoreCaller, data: bytes) -> None:
    for name in ("read", "put", "take", "last", "peek", "position", "ack"):
        with pytest.raises(SbusError) as raised:
            mallory.bus.call(f"store/{name}", data, timeout=SECONDS)
        words = getattr(raised.value, "words", "")
        assert words.partition(" ")[0] in {"EINVAL", "ENOENT", "EACCES"}, (name, words)
    assert mallory.put("log/a", b"1")


def test_a_user_cannot_publish_as_the_store(alice: StoreCaller, mallory: StoreCaller) -> None:
    with alice.bus.subscribe("log/") as live:
        alice.bus.ping()
        mallory.bus.tell(b"!/from/!/store/!/cred/0/0/1", b"MSG log/a\0forged")
        alice.put("log/a", b"real")
        item = live.receive(SECONDS)
    assert isinstance(item, Message)
    assert item.payload == b"real"
    assert alice.call("read", stream="log", from_="first").payloads == [b"real"]


def test_a_flood_of_calls_delays_the_call_of_another_user_by_few(store: StoreProgram, alice: StoreCaller, mallory: StoreCaller) -> None:
    assert store.process is not None
    key = service_key("store/put").decode()
    with Bus.connect(store.bus) as observer, observer.tap("!/conn/") as responses, observer.subscribe(key) as requests:
        store.process.send_signal(signal.SIGSTOP)
        for number in range(5_000):
            mallory.bus.publish(key, Envelope("store/put", f"{number}", b"wrong", f"{mallory.bus.address}x").encode())
        mallory.bus.ping()
        # A call that waits for neither the disk nor the bus: how long these take is another matter.
        calling = threading.Thread(target=alice.error, args=("put",), kwargs={"unknown": 1})
        calling.start()
        for _ in range(5_001):
            assert isinstance(requests.receive(SECONDS), Message)
        store.process.send_signal(signal.SIGCONT)
        calling.join()
        before = 0
        while True:
            record = responses.receive(SECONDS)
            assert not isinstance(record, Gap | Reconnected)
            if record.key is not None and record.key.startswith(alice.bus.address):
                break
            before += 1
    assert before <= 2_000, "the responses to the flood that came before"
