"""Restarts without loss: one process hands its state and its connections to the next. Spec: sbusd(8), RESTARTS."""
