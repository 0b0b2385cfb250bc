"""A file of 50 MB for another user: a message of the bus refers to it, and its pages are not copied."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from sbus.protocol.blobs import blob_address
from tools.demo.activation import ActivatedBus
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import PAUSE_SECONDS, TIMEOUT_SECONDS, Programs
from tools.demo.users import DemoUser

SIZE = 50_000_000

KEY = "camera/front"


class BlobDemo:
    """The service for large messages next to *bus*, and two users."""

    def __init__(self, bus: ActivatedBus, programs: Programs, narrator: Narrator, folder: Path) -> None:
        self._bus = bus
        self._programs = programs
        self._narrator = narrator
        self._folder = folder

    def show(self, first: DemoUser, second: DemoUser) -> None:
        """Start the service, and let *first* publish a file for *second*. Raises DemoError."""
        narrator, address = self._narrator, Path(blob_address(str(self._bus.path)))
        narrator.step(f"{first.name} publishes a file of {SIZE // 1_000_000} MB, a hundred times as long as the longest message")
        source, target = self._folder / "large", self._folder / "frames"
        source.write_bytes(os.urandom(1_000) * (SIZE // 1_000))
        source.chmod(0o644)
        target.mkdir()
        os.chown(target, second.uid, second.gid)
        configuration = self._folder / "blob.toml"
        configuration.write_text(f'bus = "{self._bus.path}"\n')
        with self._programs.running(None, "sbus-blob", "-C", str(configuration), "--listen", str(address)) as service:
            self._wait_for(address, service.poll)
            with self._programs.running(second, "sbusctl", "sub", "--blobs", str(target), KEY, "-n", "1", "--timeout", "60") as reader:
                self._bus.wait_for_subscriber(KEY)
                self._programs.run(first, "sbusctl", "pub", "--blob", str(source), KEY)
                narrator.remark(f"{second.name} receives the path of a new file:")
                said = self._programs.finish(reader)
        received = list(target.iterdir())
        if [f"{KEY}\t{path}\n" for path in received] != [said] or received[0].read_bytes() != source.read_bytes():
            raise DemoError(f"the file did not arrive: {said!r}")
        narrator.remark("the file is the same; sbus-blob passed a sealed memory file, and did not copy it")

    @staticmethod
    def _wait_for(address: Path, status: object) -> None:
        """Wait until the service listens."""
        pause = threading.Event()
        for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
            if address.is_socket():
                return
            if callable(status) and status() is not None:
                break
            pause.wait(PAUSE_SECONDS)
        raise DemoError(f"sbus-blob does not listen on {address}")
