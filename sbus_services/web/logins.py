"""The secrets of browsers: the token of a link, which works once, where the link goes, and what a browser gets for it. Spec: sbus-web(8).

A browser gets two secrets. The cookie opens the files of the page. The key opens WebSockets: the page keeps it in the storage of its
origin. A cookie alone is not enough, because browsers send the cookies of an address to all of its ports, and any user can listen on
another port.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import tempfile
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sbus_programs.standard_error import print_error
from sbus_programs.standard_output import discard_rest


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


SECRET_BYTES = 32

MAX_FAILURES = 10
"""Wrong tokens within :data:`FAILURE_SECONDS` after which no token is compared."""

FAILURE_SECONDS = 60.0

MAX_LOGINS = 32
"""Browsers that can be logged in; the oldest login ends first."""


class TooManyFailuresError(Exception):
    """No token is compared until some of the failures are older than FAILURE_SECONDS."""


def _secret() -> str:
    """Return a new secret, of characters that a URL, a cookie and a WebSocket protocol may have."""
    return secrets.token_urlsafe(SECRET_BYTES)


def is_equal(given: str, secret: str) -> bool:
    """Return whether *given* is *secret*, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode())


@dataclass(frozen=True, slots=True)
class Login:
    """The secrets of one browser."""

    cookie: str = field(default_factory=_secret, repr=False)
    key: str = field(default_factory=_secret, repr=False)


class Logins:
    """The token of the next link, and the browsers that are logged in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """*clock* counts seconds."""
        self._clock = clock
        self._token = _secret()
        self._logins: OrderedDict[str, Login] = OrderedDict()
        self._failures: deque[float] = deque()
        self.wrong_tokens = 0
        """Wrong tokens since the start."""

    @property
    def token(self) -> str:
        """The token of the next link."""
        return self._token

    def exchange(self, token: str) -> Login | None:
        """Return a new login for *token*, and replace it by another one; None if *token* is wrong.

        Raises:
            TooManyFailuresError: too many tokens were wrong recently; *token* is not compared.
        """
        now = self._clock()
        while self._failures and self._failures[0] <= now - FAILURE_SECONDS:
            self._failures.popleft()
        if len(self._failures) >= MAX_FAILURES:
            self.wrong_tokens += 1
            raise TooManyFailuresError
        if not is_equal(token, self._token):
            self.wrong_tokens += 1
            self._failures.append(now)
            return None
        self._token = _secret()
        login = Login()
        self._logins[login.cookie] = login
        if len(self._logins) > MAX_LOGINS:
            self._logins.popitem(last=False)
        return login

    @property
    def count(self) -> int:
        """The browsers that are logged in."""
        return len(self._logins)

    def find(self, cookie: str) -> Login | None:
        """Return the login with *cookie*, None if there is none. Compares with each."""
        found = None
        for login in self._logins.values():
            if is_equal(cookie, login.cookie):
                found = login
        return found
