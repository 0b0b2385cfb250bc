"""Where a new link goes: to standard output, or into a file that only its owner can read."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from sbusd.standard_error import print_error
from sbusd.standard_output import discard_rest


def print_link(link: str) -> None:
    """Print *link*. Standard output that cannot be written, such as to a reader that has gone, must not end the gateway."""
    try:
        print(f"Open this link in a browser. It works once.\n\n    {link}\n", flush=True)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            discard_rest()
        print_error("sbus-web", f"cannot write the link to standard output: {error}; use --url-file")


def link_file(path: Path) -> Callable[[str], None]:
    """Return a function that replaces the content of *path* by a link. The file has the mode 0600. It raises OSError.

    Raises:
        OSError: *path* is a device, a pipe or a socket, which the file would replace.
    """
    if path.exists() and not (path.is_file() or path.is_dir() or path.is_symlink()):
        raise OSError(errno.EEXIST, "is not a regular file", str(path))

    def write(link: str) -> None:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{link}\n")
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise

    return write
