"""The record of a bus, as it lies on disk: its schema, its layout, its index, and how it is read. Spec: sbus-record(5).

The recorder writes it, the pipeline and ``sbusctl replay`` read it. Nothing here knows of a bus.
"""
