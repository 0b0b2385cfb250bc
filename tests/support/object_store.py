"""An S3-compatible object store on loopback, in a process of its own, and the environment of its clients."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.skips import require

BUCKET = "fleet"
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A server at ``url`` with the bucket :data:`BUCKET`."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that clients need."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-central-1",
        }


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Start a server that keeps objects in memory; its messages are in *folder*."""
    require(importlib.util.find_spec("moto") is not None, "needs moto: pip install 'moto[server]'", could_run=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    with (folder / "object-store.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            deadline = time.monotonic() + _SECONDS
            while not _creates_bucket(url):
                assert server.poll() is None, (folder / "object-store.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield ObjectStore(url)
        finally:
            server.terminate()


def _creates_bucket(url: str) -> bool:
    """Create the bucket; return whether the server responded."""
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=10) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False
