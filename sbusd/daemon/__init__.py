"""The bus itself: ``switch`` moves messages, ``broker`` decides everything else. Nobody imports this package."""
