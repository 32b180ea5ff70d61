"""The formats of values: a module for each, with a `Reader` and a `Writer` of `formats.base`, named after it."""

from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any, cast

from streampca.errors import naming_the_extra
from streampca.formats.base import Layout, Reader, Writer
from streampca.formats.schemas import Schemas, WriterSchema


def reader_of(
    format: str,  # noqa: A002 - the setting's name
    dimensions: int,
    field: str,
    schemas: Schemas | None,
    *,
    impute: bool = False,
) -> Reader:
    """The reader of a format. With `impute` it reads null as NaN, where the format has a null.

    Raises `SettingsError` if a package that it needs, an optional extra, is not installed.
    """
    return cast(Reader, _member(format, "{}Reader")(format, dimensions, field, schemas, impute))


def writer_of(format: str, around: Sequence[str] = (), frame: bytes = b"") -> Writer:  # noqa: A002
    """The writer of a format, for fields inside of objects with the names `around`. Raises as `reader_of` does.

    `frame` comes before the values of Avro and Protobuf, and names their schema (`schema_of`).
    """
    return cast(Writer, _member(format, "{}Writer")(format, tuple(around), frame))


def schema_of(format: str, layout: Layout) -> WriterSchema | None:  # noqa: A002
    """The schema of values with this layout, if the format has schemas. Raises as `reader_of` does."""
    return cast(WriterSchema, _member(format, "schema_of")(layout)) if format in ("avro", "protobuf") else None


def _member(format: str, name: str) -> Any:  # noqa: A002
    is_raw = PathFinder.find_spec(format, __path__) is None  # else it is the name of a module here
    module, prefix = ("npy", "Raw") if is_raw else (format, format.title())
    with naming_the_extra(f"format {format}", format):
        return getattr(import_module(f"{__name__}.{module}"), name.format(prefix))
