from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sized

from sbusd.client.messages import Item, Message

class Taker(AsyncIterator[Item]):
    def __init__(self, ready: deque[Message], refusals: Sized, wait: Callable[[], Awaitable[Item]]) -> None: ...
    def __anext__(self) -> Awaitable[Item]: ...
