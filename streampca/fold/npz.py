"""The file format of checkpoints and models: an `.npz` file with a JSON header and a digest, without pickles.

The same content gives the same bytes. `numpy.load` reads the file; its member `header` is JSON text as bytes. The
comment of the zip is the SHA-256 of all bytes before it, since the directory of a zip has no checksum.
"""

import hashlib
import io
import zipfile
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streampca.errors import DamagedFileError, NewerFormatError, SettingsError

Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Milliseconds = Annotated[int, Field(strict=True, ge=-1, lt=2**63)]  # since 1970; -1: unknown
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
NonNegative = Annotated[Finite, Field(ge=0)]
Share = Annotated[Finite, Field(ge=0, le=1.000001)]

MAX_NAME = 255  # characters of a dimension's name
_DIGEST_LENGTH = 64  # characters of SHA-256 in hexadecimal


class Strict(BaseModel):
    """Part of a header, whose values are not converted: a text is not taken for a number.

    A file with the right digest may still hold wrong values.
    """

    model_config = ConfigDict(strict=True, extra="forbid")


class Header(Strict):
    """The fields that the header of every file has."""

    kind: str
    format_version: int
    topic: str
    topic_id: str
    settings: dict[str, str | bool | int | float | None]
    names: list[str] | None = None  # of the dimensions


H = TypeVar("H", bound=Header)
Content = tuple[dict[str, Any], dict[str, NDArray[Any]]]  # header and arrays


def encode(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return the bytes of the file. Its members are uncompressed, in the given order, without timestamps."""
    text = orjson.dumps(header, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
    members = {"header": np.frombuffer(text, np.uint8), **arrays}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as zipped:
        for name, array in members.items():
            with zipped.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), version=(1, 0), allow_pickle=False)
        zipped.comment = b"0" * _DIGEST_LENGTH  # its place, at the end of the file; the digest replaces it below
    body = buffer.getvalue()[:-_DIGEST_LENGTH]
    return body + hashlib.sha256(body).hexdigest().encode()


def decode(data: bytes, kind: str, format_version: int, upgrade: Callable[..., Content] | None = None) -> Content:
    """Return header and arrays of a file of this kind that `encode` wrote in this version of the format.

    With `upgrade`, a file of the version before is read, too: `upgrade` turns its header and arrays into today's.
    Raises `DamagedFileError` for other bytes and kinds, `NewerFormatError` for a newer version, and `SettingsError`
    for an older one.
    """
    body = memoryview(data)[:-_DIGEST_LENGTH]
    digest = data[-_DIGEST_LENGTH:]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise DamagedFileError("the digest at the file's end does not match the file: it is cut short or damaged")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as members:
            if any(member.compress_type != zipfile.ZIP_STORED for member in members.zip.infolist()):
                raise ValueError("a member is compressed")  # and might need any amount of memory
            arrays = {name: members[name] for name in members.files}
        header = orjson.loads(arrays.pop("header").tobytes())
        found_kind = header["kind"]
        version = header.get("format_version")
    except Exception as error:  # for foreign bytes with a valid digest, zipfile and NumPy raise a dozen types
        raise DamagedFileError(f"not a streampca file: {error!r}") from None
    if found_kind != kind:
        raise DamagedFileError(f"this is a {found_kind} file, not a {kind} file")
    is_number = isinstance(version, int) and not isinstance(version, bool)
    number = version if is_number else 0  # there never was a version 0
    if number == format_version:
        return header, arrays
    if number == format_version - 1 and number > 0 and upgrade:
        return upgrade(header, arrays)
    if number > format_version:
        raise NewerFormatError(
            f"a newer release has written this {kind} file (format version {version}, this release reads "
            f"{format_version}); nothing is damaged: upgrade this process"
        )
    if number > 0:
        raise SettingsError(
            f"an earlier release has written this {kind} file (format version {version}, too old for this release): "
            "start over with another store folder and another group_id, or continue with that release"
        )
    raise DamagedFileError(f"format version {version} of this {kind} file is not {format_version}")


def are_names(names: Sequence[str] | None, dimensions: Any) -> bool:
    """Return whether these can be the names of so many dimensions: all different, and neither empty nor too long.

    None is valid, too: the dimensions have no names.
    """
    if names is None:
        return True
    is_right_count = len(names) == len(set(names)) == dimensions
    return is_right_count and all(0 < len(name) <= MAX_NAME for name in names)


def validate(schema: type[H], header: dict[str, Any]) -> H:
    """Return the header as an object. Raises `DamagedFileError` that names the first wrong field."""
    try:
        return schema.model_validate(header)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise DamagedFileError(f"not a {header['kind']} file: {field} in its header is wrong: {first['msg']}") from None
