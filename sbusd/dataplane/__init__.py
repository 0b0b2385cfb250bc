"""The data plane: moves messages between connections, without the interpreter. ``contract`` is its interface; ``switch`` implements it."""
