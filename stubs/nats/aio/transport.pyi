import asyncio

class TcpTransport:
    _io_reader: asyncio.StreamReader | None
    _io_writer: asyncio.StreamWriter | None
