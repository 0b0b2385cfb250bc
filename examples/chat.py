"""A chat room for asyncio. Run it in two terminals: python3 examples/chat.py

It publishes each line that you type to chat/USER, and prints the lines of all users, also those of chat.sh. Ctrl-D ends it.
"""

import asyncio
import getpass
import sys

from sbusd.client import AsyncBus, AsyncSubscription


async def show(room: AsyncSubscription) -> None:
    """Print what is said in the room."""
    async for message in room:
        print(message.key.decode(), message.payload.decode(errors="replace"), sep="\t", flush=True)


async def main() -> None:
    """Chat until standard input ends."""
    async with AsyncBus.connect() as bus, bus.subscribe("chat/") as room:
        screen = asyncio.create_task(show(room))
        while line := await asyncio.to_thread(sys.stdin.readline):
            await bus.publish(f"chat/{getpass.getuser()}", line.rstrip("\n"))
        screen.cancel()


asyncio.run(main())
