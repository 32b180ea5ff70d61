"""Says in plain words what a file is that streampca has not written."""

import io
import zipfile

_FIRST_MEMBER = b"header.npy"  # of every file that streampca writes
_NAME_AT = 30  # in the header of a zip's member
_SIGNATURES = {
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
    b"\x89PNG": "a PNG image",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x80\x04\x95": "a Python pickle",
}
_SHOWN, _MOST_NAMES = 40, 5


def is_foreign(data: bytes) -> bool:
    """Whether streampca has not written the file; one that it has written may be damaged."""
    return not data.startswith(b"PK\x03\x04") or data[_NAME_AT : _NAME_AT + len(_FIRST_MEMBER)] != _FIRST_MEMBER


def describe(data: bytes) -> str:
    """What a foreign file is, by its first bytes."""
    if not data:
        return "it is empty"
    if data.startswith(b"PK\x03\x04"):
        return _describe_zip(data)
    for signature, kind in _SIGNATURES.items():
        if data.startswith(signature):
            return f"it is {kind}"
    start = data[:_SHOWN]
    try:
        return f"it is text, beginning with {start.decode('ascii')!r}"
    except UnicodeDecodeError:
        return f"it begins with the bytes {start[:8].hex(' ')}"


def _describe_zip(data: bytes) -> str:
    try:
        names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    except (zipfile.BadZipFile, ValueError, OSError):
        return "it begins like a zip archive, but is none"
    kind = "a NumPy archive (.npz)" if names and all(name.endswith(".npy") for name in names) else "a zip archive"
    shown = [name.removesuffix(".npy")[:_SHOWN] for name in names[:_MOST_NAMES]]
    return f"it is {kind} of {', '.join(shown) or 'nothing'}{', …' if len(names) > _MOST_NAMES else ''}"
