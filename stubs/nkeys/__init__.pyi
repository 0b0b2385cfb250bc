PREFIX_BYTE_USER: int

class KeyPair:
    public_key: bytes

def encode_seed(src: bytes, prefix: int) -> bytes: ...
def from_seed(seed: bytearray) -> KeyPair: ...
