"""Calls the service of rpc_service.py: python3 examples/rpc_call.py 'three short words'"""

import sys

from sbus import Bus, CallTimeout, NoRecipient, RemoteError

with Bus.connect() as bus:
    try:
        answer = bus.call("text/count", sys.argv[1], timeout=10)
        print(answer.decode(), "words")
    except NoRecipient:
        sys.exit("rpc_call: no service: start rpc_service.py first")
    except CallTimeout:
        sys.exit("rpc_call: the service has not answered within 10 s")
    except RemoteError as error:
        sys.exit(f"rpc_call: the service reports an error: {error}")
