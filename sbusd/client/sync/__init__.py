"""The blocking client: :class:`~sbusd.client.sync.bus.Bus`. ``sbusd.client.asyncio`` has the same modules for asyncio."""
