"""An application of the Reliable Message Bus: responds to requests in msgbus.COMMAND with their data until it is stopped.

    python3 responder.py COMMAND SOCKET

Whatever is killed, it answers each request once: one that it has taken lies in a list of its own until the answer is there too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import redis

command, path = sys.argv[1:]
taken = f"answerer:{command}"
client: Any = redis.Redis(unix_socket_path=path, socket_timeout=5)
while True:
    try:
        raw = client.lindex(taken, 0) or client.blmove(f"msgbus.{command}", taken, 1, "LEFT", "RIGHT")
        if raw is not None:
            asked = json.loads(raw)
            answer = {**asked, "src": asked["dst"][0], "dst": [asked["src"]], "now": int(time.time())}
            with client.pipeline(transaction=True) as change:
                change.rpush(asked["ret"], json.dumps(answer))
                change.lrem(taken, 1, raw)
                change.execute()
    except redis.RedisError:
        time.sleep(0.05)
