"""The metrics of a bus, for Prometheus and others: the program sbus-metrics(8), and ``sbusctl stats --openmetrics``."""
