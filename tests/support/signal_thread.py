"""Run a program in which another thread than the main one gets all signals: ``python -m tests.support.signal_thread MODULE ARGUMENT...``

So no signal interrupts a wait of the program. The kernel does the same, rarely, with a process that was stopped and goes on, signal(7).
"""

from __future__ import annotations

import importlib
import signal
import sys
import threading

from sbus_programs.systemd.signals import ENDING


def main() -> None:
    """Run the main function of a module."""
    module, *sys.argv[1:] = sys.argv[1:]
    takes = threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    threading.Thread(target=_take, args=(takes,), daemon=True).start()
    takes.wait()
    importlib.import_module(module).main()


def _take(takes: threading.Event) -> None:
    """Let the kernel interrupt this thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    takes.set()
    threading.Event().wait()


if __name__ == "__main__":
    main()
