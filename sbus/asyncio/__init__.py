"""The client for asyncio: :class:`~sbus.asyncio.bus.AsyncBus`. Most of ``sbus.sync`` is made from it: ``make faces``."""
