"""Each error is a builtin too, and its text is one line that says what to do."""

from __future__ import annotations

import asyncio
import errno
import pickle
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sbus import AsyncBus, Bus, bus_address, errors
from sbus.bus_unit import named_unit
from sbus.errors import RemoteError, SbusError, no_bus
from sbus.protocol.blobs import blob_address
from sbus.store.errors import StoreNotRunning, store_error
from sbus.sync.blob_socket import no_service
from tests.support import skips
from tests.support.minibus import MiniBus
from tools.stage import ROOT

_SYSTEMCTL = re.compile(r"systemctl(?: --user)?(?= [a-z])")

EXAMPLES: list[tuple[SbusError, type[Exception], str]] = [
    (errors.NoBus("/s", "why"), ConnectionError, "cannot connect to /s: why"),
    (errors.Closed("the bus"), RuntimeError, "the bus is closed"),
    (errors.Disconnected("/s"), ConnectionError, "disconnected from /s"),
    (
        errors.Disconnected("/s", errors.RemoteRefusal(errors.ErrorCode.EPROTO, "bad packet")),
        ConnectionError,
        "disconnected from /s: EPROTO bad packet",
    ),
    (errors.Disconnected("/s", fault="nonsense"), ConnectionError, "disconnected from /s: nonsense"),
    (
        errors.ForkedError("/s"),
        ConnectionError,
        "the connection to /s belongs to the parent process: connect again after fork()",
    ),
    (errors.RemoteRefusal(errors.ErrorCode.EPERM, "no", "SUB 'a'"), RuntimeError, "the bus refused SUB 'a': EPERM no"),
    (errors.RemoteRefusal(errors.ErrorCode.EPERM, "no", key="a/b"), RuntimeError, "the bus refused a message to 'a/b': EPERM no"),
    (
        errors.RemoteRefusal(errors.ErrorCode.EPERM, "no", "a message with a receipt", "x" * 200 + "\n"),
        RuntimeError,
        f"the bus refused a message with a receipt to '{'x' * 100}…{'x' * 23}\\n': EPERM no",
    ),
    (errors.Unanswered("CMSG 'x'"), RuntimeError, "the bus sends no response to CMSG 'x'; send it with tell()"),
    (
        errors.AnswerLost("ping"),
        RuntimeError,
        "the response to ping may be lost: this client reads too slowly; send the request again",
    ),
    (errors.TimedOut("it", 1.5), TimeoutError, "it took longer than 1.5 s"),
    (
        errors.RemoteRefusal(errors.ErrorCode.EACCES, "no", "SUB 'a'"),
        RuntimeError,
        "the bus refused SUB 'a': EACCES no; the bus has closed the connection",
    ),
    (errors.BlobTooLarge(9, "f"), OSError, "f: it has more than 9 bytes, the quota of this user for blobs; see blob.toml(5)"),
    (
        errors.InboxFull((b"a/", b""), 5),
        BufferError,
        "the subscription to 'a/' '' is full: 5 packets unread; read it, or use Overflow.DISCARD or a second Bus",
    ),
    (errors.PayloadTooLarge(9, 8), ValueError, "packet too long: 9 bytes, this connection can send at most 8; publish_blob() sends more"),
    (errors.PayloadTooLarge(9, 8).without_advice(), ValueError, "packet too long: 9 bytes, this connection can send at most 8"),
    (errors.NotSubscribed(b"a"), LookupError, "not subscribed to 'a'"),
]


@pytest.mark.parametrize(("error", "builtin", "text"), EXAMPLES)
def test_text_and_builtin(error: SbusError, builtin: type[Exception], text: str) -> None:
    assert isinstance(error, builtin)
    assert str(error) == text


@pytest.mark.parametrize("error", [error for error, _, _ in EXAMPLES])
def test_an_error_can_be_passed_to_another_process(error: SbusError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert {name: str(value) for name, value in vars(again).items()} == {name: str(value) for name, value in vars(error).items()}


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ECONNREFUSED, errno.EACCES, errno.EPROTOTYPE, errno.EAGAIN, errno.EMFILE])
def test_a_failed_connect_says_why(number: int) -> None:
    error = no_bus("/s", OSError(number, "x"))
    assert error.errno == number
    assert len(error.reason) > 5
    assert "\n" not in str(error)


def test_an_address_in_hexadecimal_that_names_a_path() -> None:
    error = no_bus(f"/dev/unix/abstract/{b'/no/such'.hex()}", OSError(errno.ENOENT, ""))
    assert error.reason == "no such socket; the digits are those of the path '/no/such'; use the address that sbusd printed"


@pytest.mark.slow
def test_a_mounted_socket_file_that_is_stale_is_named(folder: Path) -> None:
    """As in a container: the file on the host is another one after the socket was created again."""
    skips.require_namespaces()
    code = f"""
import socket
from sbus import Bus, NoBus
try:
    Bus.connect({str(folder / "inside")!r})
except NoBus as error:
    print(error.reason)
"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as before:
        before.bind(str(folder / "outside"))
    (folder / "inside").touch()
    script = 'mount --bind "$1/outside" "$1/inside" && exec "$2" -c "$3"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(folder), sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert "mount its directory instead" in done.stdout, done


@pytest.mark.parametrize(
    ("bus", "streams", "store_log", "relay_log"),
    [
        ("/run/sbus.socket", "sbusctl", "journalctl -u sbus-store", "journalctl -u sbus-relay"),
        ("/run/user/7/sbus.socket", "sbusctl --user", "journalctl --user -u sbus-store", "the log of sbus-relay"),
        ("/run/sbus/lab.socket", "sbusctl -a /run/sbus/lab.socket", "the log of sbus-store", "the log of sbus-relay"),
        ("/srv/a b", "sbusctl -a '/srv/a b'", "the log of sbus-store", "the log of sbus-relay"),
    ],
)
def test_advice_about_the_store_fits_the_bus(
    monkeypatch: pytest.MonkeyPatch, bus: str, streams: str, store_log: str, relay_log: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.delenv("SBUS_ADDRESS", raising=False)

    def advice(words: str, twin: int | None = None) -> str:
        return store_error(RemoteError("store/put", words), twin, bus).advice

    assert advice("ENOENT no stream") == f"list what there is with `{streams} store streams`"
    assert advice("EIO damaged") == f"look at the log: {store_log}"
    assert advice("EIO damaged", 5) == "look at the log: the log of sbus-store on that host"
    assert advice("no route", 5) == f"look at the relays of both hosts: {relay_log}"
    assert "{" not in "".join(map(advice, ("EACCES x", "EDQUOT x", "EMSGSIZE x", "ENOSPC x", "ESTALE x", "EBUSY x", "EAGAIN x")))


@pytest.mark.parametrize(
    ("given", "bus", "command"),
    [
        ("/run/user/7/sbus.socket", "/run/user/7/sbus.socket", "sbusctl"),
        ("/run/user/7/sbus.socket", "/run/sbus.socket", "sbusctl --system"),
        ("/srv/s", "/srv/s", "sbusctl"),
    ],
)
def test_the_command_for_a_bus_depends_on_the_environment(monkeypatch: pytest.MonkeyPatch, given: str, bus: str, command: str) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setenv("SBUS_ADDRESS", given)
    assert errors.sbusctl(bus) == command


@pytest.mark.parametrize("folder", [None, "", "run", ".", "/run/user/7/"])
def test_only_a_directory_of_this_user_has_a_bus_of_this_user(monkeypatch: pytest.MonkeyPatch, folder: str | None) -> None:
    if folder is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    users = [
        "/run/user/sbus.socket",
        "/run/user/7/sbus.socket",
        "/run/user/8/sbus.socket",
        "run/sbus.socket",
        "sbus.socket",
        "./sbus.socket",
    ]
    addresses = ["/run/sbus.socket", *users]
    found = [address for address in addresses if errors.is_default(address)]
    try:
        wanted = ["/run/sbus.socket", bus_address(scope="user")]
    except errors.NoBus:
        wanted = ["/run/sbus.socket"]
    assert found == wanted
    assert [unit is not None and unit.is_user for unit in map(named_unit, addresses)] == [each in wanted[1:] for each in addresses]
    assert [errors.systemctl(address) for address in found] == ["systemctl", "systemctl --user"][: len(found)]


@pytest.mark.parametrize(
    ("bus", "systemctl"),
    [("/run/sbus.socket", "systemctl"), ("/run/user/7/sbus.socket", "systemctl --user"), ("/run/sbus/lab.socket", ""), ("/srv/s", "")],
)
def test_advice_names_the_service_manager_of_the_bus(monkeypatch: pytest.MonkeyPatch, bus: str, systemctl: str) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    missing = OSError(errno.ENOENT, "")
    said = [str(each) for each in (no_bus(bus, missing), StoreNotRunning("store/put", bus), no_service(blob_address(bus), missing))]
    assert [_SYSTEMCTL.findall(each) for each in said] == [[systemctl] if systemctl else []] * 3, said


def call(address: str) -> None:
    with Bus.connect(address) as bus:
        bus.call("echo", bytes(500_000))


async def call_asyncio(address: str) -> None:
    async with AsyncBus.connect(address) as bus:
        await bus.call("echo", bytes(500_000))


@pytest.mark.parametrize("face", [call, lambda address: asyncio.run(call_asyncio(address))], ids=["blocking", "asyncio"])
def test_a_request_that_is_too_long_has_no_advice_about_publications(mini_bus: MiniBus, face: Callable[[str], None]) -> None:
    with pytest.raises(errors.PayloadTooLarge, match=r"at most 409600$") as caught:
        face(mini_bus.address)
    assert caught.value.advice == ""
