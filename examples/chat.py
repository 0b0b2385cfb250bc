"""A chat room: python3 examples/chat.py. Type a line, or /who, or /msg USER TEXT for one user. Ctrl-D ends it.

The bus names the sender of each line, so no user can write as another one. Users have numbers here, as id(1) prints them.
"""

import os
import sys
import threading

from sbus import Bus, Subscription


def show(lines: Subscription) -> None:
    """Print what others write, without control characters."""
    for line in lines:
        text = "".join(filter(str.isprintable, line.payload.decode(errors="replace")))
        print(line.sender.uid if line.sender else "", "room" if line.key.startswith("chat/") else "private", text, sep="\t", flush=True)


with Bus.connect() as bus:
    bus.tell("sender/on")
    with bus.subscribe("chat/", f"!/cred//{os.getuid()}//chat") as lines:
        threading.Thread(target=show, args=(lines,), daemon=True).start()
        for line in sys.stdin:
            match line.rstrip("\n").split(maxsplit=2):
                case ["/who"]:
                    print("here", *sorted({peer.uid for peer in bus.members("chat/room")}), sep="\t", flush=True)
                case ["/msg", user, text]:
                    bus.publish(f"!/cred//{user}//chat", text)
                case _:
                    bus.publish("chat/room", line.rstrip("\n"))
