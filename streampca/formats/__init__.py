"""The formats of values: a module for each, with a class that implements `formats.base.Reader`."""

from streampca.errors import SettingsError
from streampca.formats.base import Reader
from streampca.formats.json import JsonReader
from streampca.formats.npy import NpyReader
from streampca.formats.raw import RawReader
from streampca.formats.schemas import Schemas


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
                from streampca.formats.arrow import ArrowReader

                return ArrowReader(dimensions, field, gaps=gaps)
            case "avro" if schemas is not None:
                from streampca.formats.avro import AvroReader

                return AvroReader(dimensions, field, schemas, gaps=gaps)
            case "protobuf" if schemas is not None:
                from streampca.formats.protobuf import ProtobufReader

                return ProtobufReader(dimensions, field, schemas)
    except ImportError as error:
        raise SettingsError(
            f"format {format} needs {error.name}, which is not installed: pip install 'streampca[{format}]'"
        ) from None
    return RawReader(format, dimensions)
