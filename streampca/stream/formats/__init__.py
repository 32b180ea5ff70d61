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

    Raises `SettingsError` if a package that it needs, an optional extra, is not installed.
    """
    try:
        match format:
            case "json":
                return JsonReader(dimensions, field, gaps=gaps)
            case "npy":
                return NpyReader(dimensions)
            case "arrow":
                from streampca.stream.formats.arrow import ArrowReader

                return ArrowReader(dimensions, field, gaps=gaps)
            case "avro" if schemas is not None:
                from streampca.stream.formats.avro import AvroReader

                return AvroReader(dimensions, field, schemas, gaps=gaps)
            case "protobuf" if schemas is not None:
                from streampca.stream.formats.protobuf import ProtobufReader

                return ProtobufReader(dimensions, field, schemas)
    except ImportError as error:
        raise SettingsError(
            f"format {format} needs {error.name}, which is not installed: pip install 'streampca[{format}]'"
        ) from None
    return RawReader(format, dimensions)
