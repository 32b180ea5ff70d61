"""Files as a newer release would write them."""

from streampca.fold import checkpoint, model_file, npz


def newer(data: bytes, kind: str) -> bytes:
    """The same content with a later format version."""
    version = {"checkpoint": checkpoint.FORMAT_VERSION, "model": model_file.FORMAT_VERSION}[kind]
    header, arrays = npz.decode(data, kind, version)
    return npz.encode(header | {"format_version": version + 1}, arrays)
