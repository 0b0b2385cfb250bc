"""Certificates and keys that are replaced on disk while the relay runs: new connections use the new ones. Spec: sbus-relay(8).

The files are compared every few seconds, and on SIGHUP, in a thread: a file system that hangs must not delay messages. What cannot be used
is reported, and the relay continues with what it has.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from sbusd.client.asyncio.look_ups import in_thread
from sbusd.config.certificates import validity_of
from sbusd.config.files import ConfigError
from sbusd.config.relay import RelaySettings
from sbusd.relay.http.authentication import read_keys
from sbusd.relay.http.credentials import check_identity, client_context, server_context
from sbusd.relay.log_messages import CERTIFICATE_ENDS, CREDENTIALS_KEPT, CREDENTIALS_READ
from sbusd.systemd.limited_log import LimitedLog

CHECK_SECONDS = 5.0
"""Interval of comparisons. A change must be seen in two of them, so that files that belong together are replaced."""

DAY = 86_400.0

WARNING_SECONDS = 14 * DAY
"""A certificate is reported this long before its end, and every day from then on."""

Stamps = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of modification of each file; None for a file that cannot be read."""


class Credentials:
    """The TLS contexts and the keys in use."""

    def __init__(self, settings: RelaySettings, journal: LimitedLog, clock: Callable[[], float] = time.time) -> None:
        """Read the files. *clock* returns seconds since 1970. Raises ConfigError."""
        self._settings = settings
        self._journal = journal
        self._clock = clock
        self._files = [Path(each.key_file) for each in settings.peers if each.key_file]
        if settings.tls.is_on:
            self._files += [Path(name) for name in (settings.tls.certificate, settings.tls.key, settings.tls.authority)]
        self._read_at = self._seen = self._stamps()
        self.keys = read_keys(settings)
        """By host. The object stays the same."""
        self.server: ssl.SSLContext | None = None
        self.client: ssl.SSLContext | None = None
        if settings.tls.is_on:
            check_identity(settings.tls, settings.twin, is_start=True)  # at boot, the clock can be wrong
            self.server, self.client = server_context(settings.tls), client_context(settings.tls)
        self._warned_at: float | None = None
        self._is_asked = asyncio.Event()

    def reload(self) -> None:
        """Compare and read the files now."""
        self._is_asked.set()

    async def run(self) -> None:
        """Follow the files until cancelled."""
        while self._files:
            await in_thread(self._warn)
            try:
                async with asyncio.timeout(CHECK_SECONDS):  # wait_for() may swallow a cancellation before Python 3.12
                    await self._is_asked.wait()
            except TimeoutError:
                is_asked = False
            else:
                is_asked = True
                self._is_asked.clear()
            if await in_thread(self._has_changed, is_asked):
                await self._read()

    def _has_changed(self, is_asked: bool) -> bool:
        """Return whether the files must be read: others are there since the last comparison but one, or a reload was asked for."""
        before, self._seen = self._seen, self._stamps()
        return is_asked or (self._seen == before and self._seen != self._read_at)

    async def _read(self) -> None:
        """Read the files, and use them if all are valid."""
        self._read_at = self._seen
        settings = self._settings
        try:
            keys = await in_thread(read_keys, settings)
            if settings.tls.is_on:
                await in_thread(check_identity, settings.tls, settings.twin, is_start=True)
                server = await in_thread(server_context, settings.tls)
                client = await in_thread(client_context, settings.tls)
                self.server, self.client = server, client
        except ConfigError as error:
            self._journal.record(CREDENTIALS_KEPT, reason=str(error))
            return
        self.keys.clear()
        self.keys.update(keys)
        self._warned_at = None
        self._journal.record(CREDENTIALS_READ, files=len(self._files))

    def _warn(self) -> None:
        """Report a certificate that ends soon or has ended, once a day."""
        now = self._clock()
        if not self._settings.tls.is_on or (self._warned_at is not None and 0 <= now - self._warned_at < DAY):
            return
        file = Path(self._settings.tls.certificate)
        if (validity := validity_of(file)) is None:
            return
        begin, end = validity
        # One for a day or a week is renewed later.
        if end - now > min(WARNING_SECONDS, (end - begin) / 4):
            return
        self._warned_at = now
        left = f"ends in {(end - now) / 3600:.1f} h" if end > now else f"ended {(now - end) / 3600:.1f} h ago"
        self._journal.record(CERTIFICATE_ENDS, file=str(file), reason=left)

    def _stamps(self) -> Stamps:
        """Return what tells a replaced file from the one before."""
        return tuple(_stamp(file) for file in self._files)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Return what tells a replaced *file* from the one before."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
