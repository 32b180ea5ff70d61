"""The variable-length integers of Avro and Protobuf."""


def varint(number: int) -> bytes:
    """The bytes of a non-negative number: seven bits each, the lowest first; the last one has no eighth bit."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
