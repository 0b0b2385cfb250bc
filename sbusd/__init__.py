"""sbusd: a message bus for one machine.

A client is a Unix SEQPACKET socket and four kinds of packet; see sbus(7) and sbus-protocol(7). docs/architecture.md describes the packages,
their layers and what each decides. The daemon and the programs import each other nowhere; both use ``protocol``.
"""

__version__ = "0.1.0"
