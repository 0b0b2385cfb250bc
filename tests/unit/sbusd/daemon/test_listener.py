"""Every way to a listening socket, and what is said where there is none."""

from __future__ import annotations

import dataclasses
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbus.protocol.addresses import InheritedDescriptor, RandomAbstract, UnixName, parse_address
from sbusd.daemon.listener import Listener, ListenError, open_listener
from sbusd.daemon.options import Options

THINGS: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("precious"),
    "a file of one NUL": lambda path: path.write_bytes(b"\0"),
    "a folder": Path.mkdir,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to an empty device": lambda path: path.symlink_to("/dev/null"),
    "a fifo": os.mkfifo,
    "a device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
}
"""What -r leaves alone."""

_FIRST_PASSED = 3
"""Where systemd puts the first descriptor that it passes; sd_listen_fds(3)."""


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def path(folder: Path) -> Path:
    """A path that is short enough for a socket's."""
    return folder / "s"


def _options(path: Path, *, reuse: bool = False, mode: int = 0o700) -> Options:
    return Options(address=UnixName(os.fsencode(path)), reuse_address=reuse, socket_mode=mode)


def _connect(address: str | bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(address)


def _refusal(options: Options) -> str:
    """Return the line with which *options* are refused."""
    with pytest.raises(ListenError) as refusal:
        open_listener(options)
    assert str(refusal.value).isprintable()
    return str(refusal.value)


class TestPath:
    """A path is bound here."""

    @pytest.mark.parametrize("mode", [0o700, 0o770, 0o777])
    def test_clients_can_connect_once_it_listens(self, path: Path, mode: int) -> None:
        umask = os.umask(0o077)
        try:
            listener = open_listener(_options(path, mode=mode))
            assert os.umask(0o077) == 0o077
        finally:
            os.umask(umask)
        assert stat.S_IMODE(path.lstat().st_mode) == mode
        with pytest.raises(ConnectionRefusedError):
            _connect(str(path))
        listener.listen()
        _connect(str(path))
        assert listener.address == str(path)
        assert listener.fileno() == listener.socket.fileno()
        assert not listener.socket.getblocking()
        assert not os.get_inheritable(listener.fileno())
        listener.close()
        assert not path.exists()
        listener.close()

    def test_a_relative_path_is_removed_from_another_folder(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        listener = open_listener(_options(Path("s")))
        monkeypatch.chdir("/")
        listener.close()
        assert not (folder / "s").exists()

    def test_the_path_of_another_process_is_not_removed(self, path: Path) -> None:
        first = open_listener(_options(path))
        second = open_listener(_options(path, reuse=True))
        first.close()
        assert path.is_socket()
        second.close()
        assert not path.exists()

    def test_a_removed_path_is_not_an_error(self, path: Path) -> None:
        listener = open_listener(_options(path))
        path.unlink()
        listener.close()

    def test_a_bus_that_listens_is_not_disturbed_without_r(self, path: Path) -> None:
        listener = open_listener(_options(path))
        listener.listen()
        assert _refusal(_options(path)) == (
            f"cannot listen on {path}: in use by another process; choose another address with -a, or replace the socket with -r"
        )
        listener.close()

    def test_a_stale_socket_is_reported_as_such(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
            stale.bind(str(path))
        assert _refusal(_options(path)) == f"cannot listen on {path}: the path is a socket that no process uses; replace it with -r"
        open_listener(_options(path, reuse=True)).close()

    def test_a_stream_socket_counts_as_in_use(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.bind(str(path))
            other.listen()
            assert "in use by another process" in _refusal(_options(path))

    def test_reuse_makes_a_path_that_was_not_there(self, path: Path) -> None:
        open_listener(_options(path, reuse=True)).close()

    def test_an_empty_file_is_replaced_with_r(self, path: Path) -> None:
        """As mktemp(1) leaves one; the original does so, and its own test program relies on it."""
        path.touch()
        listener = open_listener(_options(path, reuse=True))
        listener.listen()
        _connect(str(path))
        listener.close()
        assert not path.exists()

    def test_an_empty_file_is_left_without_r(self, path: Path) -> None:
        path.touch()
        assert (
            _refusal(_options(path))
            == f"cannot listen on {path}: the path is an empty file; choose another address with -a, or replace the file with -r"
        )
        assert path.is_file()

    @pytest.mark.parametrize("reuse", [False, True])
    @pytest.mark.parametrize("make", THINGS.values(), ids=THINGS.keys())
    def test_any_other_file_is_never_replaced(self, path: Path, make: Callable[[Path], object], reuse: bool) -> None:
        make(path)
        before = path.lstat()
        said = _refusal(_options(path, reuse=reuse))
        failed = f"cannot replace {path}:" if reuse else f"cannot listen on {path}: the path exists and is"
        assert said.startswith(f"{failed} neither a socket nor an empty file; ")
        assert path.lstat()[:7] == before[:7]

    def test_an_empty_file_behind_a_link_is_not_replaced(self, path: Path) -> None:
        target = path.with_name("target")
        target.touch()
        path.symlink_to(target)
        assert "neither a socket nor an empty file" in _refusal(_options(path, reuse=True))
        assert path.is_symlink()
        assert target.is_file()

    def test_a_missing_directory_is_an_error(self, path: Path) -> None:
        said = _refusal(_options(path / "none"))
        assert said.startswith(f"cannot listen on {path}/none: No such file or directory; choose another address with -a")


class TestAbstract:
    """A name without a file."""

    def test_a_random_name_is_printed_when_clients_can_connect(self, capfd: pytest.CaptureFixture[str]) -> None:
        listener = open_listener(Options(address=RandomAbstract()))
        assert capfd.readouterr().out == ""
        listener.listen()
        printed = capfd.readouterr().out
        assert printed == f"{listener.address}\n"
        name = parse_address(printed.strip())
        assert isinstance(name, UnixName)
        assert len(name.name) == 108
        assert name.is_abstract
        _connect(name.name)
        listener.close()

    def test_two_random_names_differ(self) -> None:
        listeners = [open_listener(Options(address=RandomAbstract())) for _ in range(2)]
        assert listeners[0].address != listeners[1].address
        for listener in listeners:
            listener.close()

    def test_a_name_that_cannot_be_printed_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(fd: int, text: bytes) -> int:
            raise OSError(9, "Bad file descriptor")

        listener = open_listener(Options(address=RandomAbstract()))
        monkeypatch.setattr(os, "write", fail)
        with pytest.raises(ListenError, match="cannot write the address to standard output: Bad file descriptor; keep it open"):
            listener.listen()
        listener.close()

    def test_a_given_name_is_not_printed(self, capfd: pytest.CaptureFixture[str]) -> None:
        name = UnixName(b"\0" + os.urandom(20).ljust(107, b"\0"))
        listener = open_listener(Options(address=name))
        listener.listen()
        _connect(name.name)
        assert capfd.readouterr().out == ""
        assert "in use by another process; choose another address with -a" in _refusal(Options(address=name, reuse_address=True))
        listener.close()


def _tcp() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


def _unix(kind: socket.SocketKind, *, listening: bool) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(b"\0" + os.urandom(20))
    if listening:
        made.listen()
    return made


WRONG_SOCKETS: list[tuple[Callable[[], socket.socket], str]] = [
    (_tcp, "not a Unix socket but AF_INET"),
    (lambda: _unix(socket.SOCK_STREAM, listening=True), "a Unix socket of type STREAM, not SEQPACKET"),
    (lambda: _unix(socket.SOCK_DGRAM, listening=False), "a Unix socket of type DGRAM, not SEQPACKET"),
    (lambda: _unix(socket.SOCK_SEQPACKET, listening=False), "the socket does not listen"),
]


class TestInherited:
    """``/dev/fd/N``."""

    def test_it_is_used(self) -> None:
        passed = _unix(socket.SOCK_SEQPACKET, listening=True)
        name = passed.getsockname()
        os.set_inheritable(passed.fileno(), True)
        listener = open_listener(Options(address=InheritedDescriptor(passed.detach())))
        assert not os.get_inheritable(listener.fileno())
        assert not listener.socket.getblocking()
        listener.listen()
        _connect(name)
        listener.close()

    def test_its_path_is_not_removed(self, path: Path) -> None:
        passed = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        passed.bind(str(path))
        passed.listen()
        listener = open_listener(Options(address=InheritedDescriptor(passed.detach())))
        assert listener.address == str(path)
        listener.close()
        assert path.is_socket()

    def test_one_that_is_only_bound_is_made_to_listen_as_in_the_original(self, path: Path) -> None:
        passed = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        passed.bind(str(path))
        listener = open_listener(Options(address=InheritedDescriptor(passed.detach())))
        listener.listen()
        _connect(str(path))
        listener.close()

    @pytest.mark.parametrize(("make", "says"), [case for case in WRONG_SOCKETS if "listen" not in case[1]])
    def test_another_socket_is_refused(self, make: Callable[[], socket.socket], says: str) -> None:
        with make() as wrong:
            fd = wrong.fileno()
            assert _refusal(Options(address=InheritedDescriptor(fd))) == (
                f"cannot use /dev/fd/{fd}: {says}; pass a bound Unix socket of type SEQPACKET"
            )

    def test_a_file_is_refused(self) -> None:
        with open(os.devnull) as file:
            assert "not a socket; pass a bound" in _refusal(Options(address=InheritedDescriptor(file.fileno())))

    @pytest.mark.parametrize("fd", [999_999, 9_999_999_999])
    def test_a_closed_descriptor_is_refused(self, fd: int) -> None:
        assert f"cannot use /dev/fd/{fd}: not open; pass a bound" in _refusal(Options(address=InheritedDescriptor(fd)))


class TestActivated:
    """systemd passes sockets from descriptor 3 on; here a process that it would start is played by a fork's child."""

    @staticmethod
    def _in_child(passed: list[socket.socket], environment: dict[str, str], address: UnixName | None = None) -> str:
        """Return what a process that systemd starts with *passed* says: its address, or the line of its error."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                TestActivated._play(passed, environment, writer, address)
            finally:
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader) as stream:
            said = stream.read()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said
        return said

    @staticmethod
    def _play(passed: list[socket.socket], environment: dict[str, str], writer: int, address: UnixName | None) -> None:
        """Be the process that systemd starts."""
        # First out of the way, then into place: no descriptor may be overwritten before it has been moved.
        writer = os.dup(writer) if writer < 20 else writer
        high = [os.dup2(each.fileno(), 100 + index) for index, each in enumerate(passed)]
        writer = os.dup2(writer, 99)
        for index, fd in enumerate(high):
            os.dup2(fd, _FIRST_PASSED + index)
        for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
            os.environ.pop(name, None)
        os.environ.update({name: value.replace("SELF", str(os.getpid())) for name, value in environment.items()})
        try:
            said = open_listener(Options(address=address, user_bus=True)).address
        except Exception as error:  # whatever it is, the parent compares its text
            said = str(error)
        os.write(writer, (said + (" (LISTEN_FDS is still set)" if "LISTEN_FDS" in os.environ and address is None else "")).encode())
        os._exit(0)

    def test_the_one_socket_is_used(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as passed:
            passed.bind(str(path))
            passed.listen()
            environment = {"LISTEN_FDS": "1", "LISTEN_PID": "SELF", "LISTEN_FDNAMES": "sbus.socket"}
            assert self._in_child([passed], environment) == str(path)
        assert path.is_socket()

    @pytest.mark.parametrize(("make", "says"), WRONG_SOCKETS)
    def test_another_socket_is_refused(self, make: Callable[[], socket.socket], says: str) -> None:
        with make() as passed:
            said = self._in_child([passed], {"LISTEN_FDS": "1", "LISTEN_PID": "SELF", "LISTEN_FDNAMES": "bad"})
        assert said == (
            f"cannot use descriptor 3, bad, passed by systemd: {says}; use ListenSequentialPacket= and Accept=no in the .socket unit"
        )

    def test_more_than_one_is_refused(self) -> None:
        with _unix(socket.SOCK_SEQPACKET, listening=True) as one, _unix(socket.SOCK_SEQPACKET, listening=True) as other:
            said = self._in_child([one, other], {"LISTEN_FDS": "2", "LISTEN_PID": "SELF"})
        assert said == "systemd passed 2 sockets, the bus needs one; use one ListenSequentialPacket= in the .socket unit"

    @pytest.mark.parametrize("number", ["0", "many", "-1", "a\nb"])
    def test_missing_and_invalid_descriptors_are_rejected(self, number: str) -> None:
        said = self._in_child([], {"LISTEN_FDS": number, "LISTEN_PID": "SELF"})
        assert said.startswith("cannot use the sockets that LISTEN_FDS=")
        assert said.endswith("names: Invalid argument; only systemd may set them")
        assert said.isprintable()

    def test_sockets_for_another_process_are_ignored(self, path: Path) -> None:
        environment = {"LISTEN_FDS": "1", "LISTEN_PID": "1", "XDG_RUNTIME_DIR": str(path.parent)}
        assert self._in_child([], environment) == f"{path.parent}/sbus.socket"

    def test_a_given_address_takes_precedence(self, path: Path) -> None:
        with _unix(socket.SOCK_SEQPACKET, listening=True) as passed:
            environment = {"LISTEN_FDS": "1", "LISTEN_PID": "SELF"}
            assert self._in_child([passed], environment, UnixName(os.fsencode(path))) == str(path)


def test_a_socket_that_cannot_listen_is_an_error() -> None:
    listener = Listener(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    assert listener.address == "an unnamed socket"
    with pytest.raises(ListenError, match="cannot listen on an unnamed socket: Operation not supported"):
        listener.listen()
    listener.close()


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (Options(), "systemctl restart sbus.socket"),
        (Options(user_bus=True), "systemctl --user restart sbus.socket"),
        (Options(config_file=Path("/etc/sbus/sbusd.toml")), "systemctl restart sbus.socket"),
        (Options(config_file=Path("/srv/lab.toml")), "systemctl restart sbus.socket"),
        (Options(config_file=Path("/home/x/.config/sbus/sbusd.toml")), "systemctl --user restart sbus.socket"),
    ],
)
def test_a_service_whose_socket_systemd_has_lost_says_so(
    options: Options, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path still belongs to the previous socket, which -r would not be allowed to replace."""
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Options, "default_address", lambda _self: UnixName(os.fsencode(folder / "s")))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as before:
        before.bind(str(folder / "s"))
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    assert _refusal(options).startswith(f"systemd passed no socket: run: {command} (cannot listen on ")
    monkeypatch.delenv("NOTIFY_SOCKET")
    assert "replace it with -r" in _refusal(options)


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("/etc/sbus/lab.toml", "systemctl restart sbus@lab.socket"),
        ("/home/x/.config/sbus/lab.toml", "systemctl --user restart sbus@lab.socket"),
    ],
)
def test_an_instance_does_not_take_the_address_of_another_bus(
    file: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its socket unit has its address. So an instance without a socket is refused, even if the default address is free."""
    monkeypatch.setattr(Options, "default_address", lambda _self: UnixName(os.fsencode(folder / "s")))
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    options = Options(config_file=Path(file))
    assert _refusal(options) == f"systemd passed no socket: run: {command}, or use -a"
    assert not (folder / "s").exists()
    # From a shell, and with an address, it is a bus like others.
    open_listener(dataclasses.replace(options, address=UnixName(os.fsencode(folder / "s")))).close()
    monkeypatch.delenv("NOTIFY_SOCKET")
    open_listener(options).close()
