"""The report: the pipeline's tables as one page with charts, for a browser without a network. Spec: sbusctl(1)."""
