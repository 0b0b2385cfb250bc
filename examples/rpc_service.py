"""A service that other programs call: python3 examples/rpc_service.py

Call it with rpc_call.py, or from a shell: sbusctl call text/count 'three short words'
"""

from sbus import Bus, Request, ServiceError

with Bus.connect() as bus:

    @bus.service("text/count")
    def count(request: Request) -> str:
        """Return the number of words of a text."""
        try:
            text = request.data.decode()
        except UnicodeDecodeError:
            raise ServiceError("the text is not UTF-8") from None
        print(f"user {request.caller.uid} sent {len(text)} characters", flush=True)
        return str(len(text.split()))

    bus.serve(ready=lambda: print("ready", flush=True))
