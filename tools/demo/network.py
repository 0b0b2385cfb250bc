"""A network namespace for the demonstration, so that the machine's own network is not changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tools.demo.narrator import DemoError, Narrator

LINK = "demo0"


class DemoNetwork:
    """A network namespace with no link but its loopback."""

    def __init__(self, name: str, narrator: Narrator) -> None:
        self.name = name
        self._narrator = narrator

    def create_link(self) -> None:
        """Create the link, of a kind that needs no hardware."""
        self._ip("-n", self.name, "link", "add", LINK, "type", "veth", "peer", "name", f"{LINK}-peer")

    def remove_link(self) -> None:
        """Remove the link."""
        self._ip("-n", self.name, "link", "del", LINK)

    def _ip(self, *arguments: str) -> None:
        """Run ip(8), and show it."""
        self._narrator.command("root", ["ip", *arguments])
        _run_ip(*arguments)


@contextmanager
def own_network(narrator: Narrator) -> Iterator[DemoNetwork]:
    """Create a network namespace, and remove it in the end.

    Raises:
        DemoError: the kernel or the container does not permit it.
    """
    name = f"sbus-demo-{os.getpid()}"
    narrator.command("root", ["ip", "netns", "add", name])
    _run_ip("netns", "add", name)
    try:
        yield DemoNetwork(name, narrator)
    finally:
        _run_ip("netns", "del", name)


def _run_ip(*arguments: str) -> None:
    """Run ip(8). Raises DemoError with its error message."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
