"""The program sbusctl(1)."""

from __future__ import annotations

import gc
import signal
import sys


def main() -> None:
    """Run sbusctl with the arguments of the process, and exit as :func:`sbusctl.application.run` does."""
    # What is imported stays until the end, and to search it for garbage takes a tenth of the start.
    gc.disable()
    try:
        from sbusctl.application import run  # noqa: PLC0415 - after the line above
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
