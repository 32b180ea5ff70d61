"""The formats of values: a module for each, with a `Reader` and a `Writer` of `formats.base`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from streampca.errors import SettingsError
from streampca.formats.base import Layout, Reader, Writer
from streampca.formats.json import JsonReader, JsonWriter
from streampca.formats.npy import NpyReader, NpyWriter
from streampca.formats.raw import RawReader, RawWriter
from streampca.formats.schemas import Schemas, WriterSchema


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
    with _naming_the_extra(format):
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
    return RawReader(format, dimensions)


def writer_of(format: str, around: Sequence[str] = (), frame: bytes = b"") -> Writer:  # noqa: A002
    """The writer of a format, for fields inside of objects with the names `around`. Raises as `reader_of` does.

    `frame` comes before the values of Avro and Protobuf, and names their schema, that of `schema_of`.
    """
    with _naming_the_extra(format):
        match format:
            case "json":
                return JsonWriter(around)
            case "npy":
                return NpyWriter()
            case "arrow":
                from streampca.formats.arrow import ArrowWriter

                return ArrowWriter()
            case "avro":
                from streampca.formats.avro import AvroWriter

                return AvroWriter(frame)
            case "protobuf":
                from streampca.formats.protobuf import ProtobufWriter

                return ProtobufWriter(frame, len(around))
    return RawWriter(format)


def schema_of(format: str, layout: Layout) -> WriterSchema | None:  # noqa: A002
    """The schema of values with this layout, if the format has schemas. Raises as `reader_of` does."""
    with _naming_the_extra(format):
        match format:
            case "avro":
                from streampca.formats import avro

                return avro.schema_of(layout)
            case "protobuf":
                from streampca.formats import protobuf

                return protobuf.schema_of(layout)
    return None


@contextmanager
def _naming_the_extra(format: str) -> Iterator[None]:  # noqa: A002
    try:
        yield
    except ImportError as error:
        raise SettingsError(
            f"format {format} needs {error.name}, which is not installed: pip install 'streampca[{format}]'"
        ) from None
