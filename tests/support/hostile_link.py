"""A link that lies about its blobs, as a host can whose administrator is an enemy: ``hostile_link.py FILE [OPTION...]``.

The file has the name of the lie, and can change.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from sbus.protocol.framed_data import framed_data, parse_framed_data
from sbus_services.link import blobs, main

LIE = Path(sys.argv.pop(1))

_honest = blobs.BlobSource.answer


async def _answer(source: blobs.BlobSource, host: str, question: dict[str, Any]) -> bytes:
    """Answer as the file says."""
    answer = await _honest(source, host, question)
    head, frames = parse_framed_data(answer)
    ask = question["ask"]
    match LIE.read_text():
        case "digest" if ask == "digest":
            head["sha256"] = hashlib.sha256(b"other").hexdigest()
        case "content" if ask == "read":
            frames = [bytes(len(frames[0]))]
        case "short" if ask == "read":
            frames = [frames[0][:-1]]
        case "offset" if ask == "read":
            head["offset"] = 1 << 70
        case "frames" if ask == "read":
            frames = [b"", *frames]
        case "huge" if ask == "open":
            head["size"] = 1 << 62
        case "negative" if ask == "open":
            head["size"] = -1
        case "type" if ask == "open":
            head["type"] = "text/plain\n\x1b[31m"
        case "expire" if ask == "open":
            head["expire"] = float("1e300")
        case "garbage":
            return b"\xff\0\xff\xff\xff\xff"
        case "error":
            return framed_data({"error": "E\n" * 5, "reason": "\x1b[31m" * 500})
    return framed_data(head, frames)


blobs.BlobSource.answer = _answer  # type: ignore[method-assign,assignment]

if __name__ == "__main__":
    main.main()
