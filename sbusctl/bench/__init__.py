"""The benchmark of ``sbusctl bench``: worker processes that publish and subscribe, and their results."""
