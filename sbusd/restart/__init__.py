"""Restarts without loss: the state and the connections pass from one process to the next. Spec: sbusd(8), RESTARTS."""
