"""The client for asyncio: :class:`~sbusd.client.asyncio.bus.AsyncBus`. ``sbusd.client.sync`` has the same modules for blocking programs."""
