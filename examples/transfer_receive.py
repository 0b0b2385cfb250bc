"""Receives a file that USER offers with transfer_send.py: python3 examples/transfer_receive.py FILE USER"""

import pwd
import sys
from pathlib import Path

from sbus import Bus, SbusError

with Bus.connect() as bus:
    senders = [peer for peer in bus.members("rpc/transfer/read") if peer.uid == pwd.getpwnam(sys.argv[2]).pw_uid]
    if not senders:
        sys.exit(f"transfer_receive: {sys.argv[2]} offers no file: start transfer_send.py first")
    with Path(sys.argv[1]).open("wb") as file:
        try:
            while chunk := bus.call("transfer/read", str(file.tell()), member=senders[0]):
                file.write(chunk)
        except SbusError as error:
            sys.exit(f"transfer_receive: the file is not complete: {error}")
        print(f"received {file.tell()} bytes")
