"""The client for asyncio: :class:`~sbusd.client.asyncio.bus.AsyncBus`. Most of ``sbusd.client.sync`` is made from it: ``make faces``."""
