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
    """Create the reader of a format. With `impute` it reads null as NaN, where the format has a null.

    If the format needs an optional package that is not installed, raises `SettingsError`.
    """
    reader = _find(format, "{}Reader")
    return cast(Reader, reader(format, dimensions, field, schemas, impute))


def writer_of(format: str, around: Sequence[str] = (), frame: bytes = b"") -> Writer:  # noqa: A002
    """Create the writer of a format. Raises as `reader_of` does.

    `around` are the names of the objects that the fields are inside of, from the outermost. In Avro and Protobuf,
    `frame` comes before each value, and names its schema (`schema_of`).
    """
    writer = _find(format, "{}Writer")
    return cast(Writer, writer(format, tuple(around), frame))


def schema_of(format: str, layout: Layout) -> WriterSchema | None:  # noqa: A002
    """Create the schema of values with this layout; None if the format has no schemas. Raises as `reader_of` does."""
    if format not in ("avro", "protobuf"):
        return None
    return cast(WriterSchema, _find(format, "schema_of")(layout))


def _find(format: str, name: str) -> Any:  # noqa: A002
    """Return a class or function of a format's module. In its name, {} stands for the format, such as Json."""
    has_module = PathFinder.find_spec(format, __path__) is not None
    if has_module:
        module, prefix = format, format.title()
    else:  # it is the NumPy type of raw numbers
        module, prefix = "npy", "Raw"
    with naming_the_extra(f"format {format}", format):
        return getattr(import_module(f"{__name__}.{module}"), name.format(prefix))
