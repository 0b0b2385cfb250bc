AWAITING_CONTROL_LINE: int
AWAITING_MSG_PAYLOAD: int

class Parser:
    buf: bytearray
    state: int
    needed: int
    async def parse(self, data: bytes = b"") -> None: ...
