"""Run a program that gets a signal at a moment of its start: ``python -m tests.support.signal_moment NUMBER EVENTS MODULE ARGUMENT...``

The moment is the main thread's audit event number EVENTS, such as the import of a module or the opening of a file, after the program has
set a handler for SIGTERM. Source: sys.addaudithook.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading


def main() -> None:
    """Run the main function of a module."""
    number, events, module, *sys.argv[1:] = sys.argv[1:]
    remaining = int(events)

    def count(_event: str, _arguments: tuple[object, ...]) -> None:
        nonlocal remaining
        if remaining and threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            remaining -= 1
            if not remaining:
                os.kill(os.getpid(), int(number))

    run = importlib.import_module(module).main
    sys.addaudithook(count)
    run()


if __name__ == "__main__":
    main()
