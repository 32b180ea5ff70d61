"""The formats of values: a module for each, with a class that implements `formats.base.Reader`."""

from streampca.errors import SettingsError
from streampca.stream.formats.base import Reader
from streampca.stream.formats.json import JsonReader
from streampca.stream.formats.npy import NpyReader
from streampca.stream.formats.raw import RawReader
from streampca.stream.formats.schemas import Schemas


def reader_of(
    format: str,  # noqa: A002 - the setting's name
    dimensions: int,
    field: str,
    schemas: Schemas | None,
    *,
    gaps: bool = False,
) -> Reader:
    """The reader of a format. With `gaps` it reads null as NaN, where the format has a null.

    Raises `SettingsError` if a package that it needs is not installed.
    """
    match format:
        case "json":
            return JsonReader(dimensions, field, gaps=gaps)
        case "npy":
            return NpyReader(dimensions)
        case "avro" | "protobuf" | "arrow":
            try:
                return _extra(format, dimensions, field, schemas, gaps)
            except ImportError as error:
                raise SettingsError(
                    f"format {format} needs {error.name}, which is not installed: pip install 'streampca[{format}]'"
                ) from None
    return RawReader(format, dimensions)


def _extra(
    format: str,  # noqa: A002 - the setting's name
    dimensions: int,
    field: str,
    schemas: Schemas | None,
    gaps: bool,
) -> Reader:
    """The reader of a format whose packages are an optional extra, and so are imported here."""
    if format == "arrow":
        from streampca.stream.formats.arrow import ArrowReader

        return ArrowReader(dimensions, field, gaps=gaps)
    if schemas is None:
        raise ValueError(f"format {format} needs schemas")
    if format == "avro":
        from streampca.stream.formats.avro import AvroReader

        return AvroReader(dimensions, field, schemas, gaps=gaps)
    from streampca.stream.formats.protobuf import ProtobufReader

    return ProtobufReader(dimensions, field, schemas)
