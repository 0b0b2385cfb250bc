"""sbusd: a message bus for one machine.

A client is a Unix SEQPACKET socket and four kinds of packet; see sbus(7) and sbus-protocol(7).
The packages, from the bottom: ``protocol`` (what the wire means), ``client`` (Python programs), and above them
``daemon``, ``ctl`` and ``feeds``, which do not import each other.
"""

__version__ = "0.1.0"
