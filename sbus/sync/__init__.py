"""The blocking client: :class:`~sbus.sync.bus.Bus`. ``sbus.asyncio`` has the same modules for asyncio."""
