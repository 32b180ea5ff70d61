"""The file format of checkpoints and models: an `.npz` file with a JSON header and a digest, without pickles.

The same content gives the same bytes. `numpy.load` reads the file; its member `header` is JSON text as bytes. The
comment of the zip, at the end of the file, is the SHA-256 of all bytes before it: a zip checks only its members, and
not its directory.
"""

import hashlib
import io
import threading
import zipfile
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streampca.errors import DamagedFileError, EarlierFormatError, NewerFormatError

Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Milliseconds = Annotated[int, Field(strict=True, ge=-1, lt=2**63)]  # since 1970; -1: unknown
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
NonNegative = Annotated[Finite, Field(ge=0)]
Share = Annotated[Finite, Field(ge=0, le=1.000001)]

# Every file is a zip archive whose first member is the header.
_ZIP_SIGNATURE = b"PK\x03\x04"
_FIRST_MEMBER = b"header.npy"
_FIRST_NAME_OFFSET = 30  # of the name of a zip archive's first member

MAX_NAME = 255  # characters of a dimension's name
_DIGEST_LENGTH = 64  # characters of SHA-256 in hexadecimal


Parameters = dict[str, str | bool | int | float | None]


class Strict(BaseModel):
    """A part of a header. A value of a wrong type is refused, and is not converted.

    The digest does not show such values: a file with the right digest may hold anything.
    """

    model_config = ConfigDict(strict=True, extra="forbid")


class Header(Strict):
    """The fields that the header of every file has."""

    kind: str
    format_version: int
    topic: str
    topic_id: str
    settings: Parameters
    names: list[str] | None = None  # of the dimensions


H = TypeVar("H", bound=Header)
# NumPy parses headers with `ast`, which Python 3.11 cannot always do in several threads: python/cpython#106905.
_PARSER_LOCK = threading.Lock()


class OtherKindError(DamagedFileError):
    """The file is another kind of file than the one that was to be read."""


Content = tuple[dict[str, Any], dict[str, NDArray[Any]]]  # header and arrays


def encode(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a file with this header and these arrays."""
    text = orjson.dumps(header, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
    members = {"header": np.frombuffer(text, np.uint8), **arrays}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as zipped:
        for name, array in members.items():
            # `force_zip64`, because a member may exceed 2 GiB: zipfile does not know its size before it is written.
            with zipped.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), version=(1, 0), allow_pickle=False)
        zipped.comment = b"0" * _DIGEST_LENGTH  # the end of a zip file; the digest takes its place below
    bytes_before_digest = buffer.getvalue()[:-_DIGEST_LENGTH]
    return bytes_before_digest + hashlib.sha256(bytes_before_digest).hexdigest().encode()


def decode(data: bytes, kind: str, format_version: int, upgrade: Callable[..., Content] | None = None) -> Content:
    """Return header and arrays of a file that `encode` wrote.

    `upgrade` converts header and arrays of a file of the version before. Raises `DamagedFileError` if `encode` has not
    written the data or they are damaged, `OtherKindError` for a file of another kind, `NewerFormatError` for a newer
    version, and `EarlierFormatError` for an older version that `upgrade` does not convert.
    """
    body = memoryview(data)[:-_DIGEST_LENGTH]
    digest = data[-_DIGEST_LENGTH:]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise DamagedFileError("the digest at the file's end does not match the file: it is cut short or damaged")
    try:
        # The lock is there because NumPy's parser may fail in several threads. NumPy ignores the digest at the end: it
        # is the comment of the zip archive.
        with _PARSER_LOCK, np.load(io.BytesIO(data), allow_pickle=False) as archive:
            # A small compressed member might need any amount of memory.
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.zip.infolist()):
                raise ValueError("a member is compressed")
            arrays = {name: archive[name] for name in archive.files}
        header = orjson.loads(arrays.pop("header").tobytes())
        found_kind = header["kind"]
        version = header.get("format_version")
    except Exception as error:  # zipfile and NumPy raise a dozen types
        raise DamagedFileError(f"not a streampca file: {error!r}") from None
    if found_kind != kind:
        raise OtherKindError(f"this is a {found_kind} file, not a {kind} file")
    is_number = isinstance(version, int) and not isinstance(version, bool)
    if not is_number or version < 1:
        raise DamagedFileError(f"format version {version} of this {kind} file is not {format_version}")
    if version == format_version:
        return header, arrays
    if version == format_version - 1 and upgrade:
        return upgrade(header, arrays)
    raise _other_version_error(kind, version, format_version)


def _other_version_error(kind: str, version: int, format_version: int) -> NewerFormatError | EarlierFormatError:
    """Return the error of a file with another version than `format_version`, which this release reads."""
    if version > format_version:
        return NewerFormatError(
            f"a newer release has written this {kind} file (format version {version}, this release reads "
            f"{format_version}); nothing is damaged: upgrade this process"
        )
    return EarlierFormatError(
        f"an earlier release has written this {kind} file (format version {version}, too old for this release): "
        "start over with another store folder and another group_id, or continue with that release"
    )


def is_streampca_file(data: bytes) -> bool:
    """Return whether a file begins like a file that streampca writes. It may still be damaged."""
    return data.startswith(_ZIP_SIGNATURE) and data.startswith(_FIRST_MEMBER, _FIRST_NAME_OFFSET)


def are_valid_names(names: Sequence[str] | None, dimensions: Any) -> bool:
    """Return whether `names` is None, or has a different name for each dimension, neither empty nor too long."""
    if names is None:
        return True
    if len(names) != dimensions:
        return False
    are_different = len(set(names)) == len(names)
    return are_different and all(0 < len(name) <= MAX_NAME for name in names)


def validate(schema: type[H], header: dict[str, Any]) -> H:
    """Return the header as an object of this class. Raises `DamagedFileError` with the first wrong field."""
    try:
        return schema.model_validate(header)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise DamagedFileError(f"not a {header['kind']} file: {field} in its header is wrong: {first['msg']}") from None
