"""The formats of values: a module for each, with a `Reader` and a `Writer` of `formats.base`, named after it.

The modules of further formats are in other packages, which name them by entry points.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

from streampca.errors import SettingsError, explain_missing_extra
from streampca.formats.base import Layout, Reader, Writer
from streampca.formats.schemas import Schemas, WriterSchema
from streampca.settings.field_paths import parse_conditions
from streampca.settings.plug_ins import BUILT_IN_FORMATS, FORMATS_WITH_SCHEMA, load_format


def reader_of(
    format: str,  # noqa: A002 - the setting's name
    dimensions: int,
    field: str,
    schemas: Schemas | None,
    *,
    impute: bool = False,
    where: str = "",
    label: str = "",
) -> Reader:
    """Create the reader of a format.

    With `impute`, it reads null as NaN. `where` holds conditions that a record must meet. `label` is the path to the
    label of a record. If the format needs a package that is not installed, raises `SettingsError`.
    """
    reader_class = _find_class(format, suffix="Reader")
    return cast(Reader, reader_class(format, dimensions, field, schemas, impute, parse_conditions(where), label))


def writer_of(format: str, enclosing_names: Sequence[str] = (), schema_prefix: bytes = b"") -> Writer:  # noqa: A002
    """Create the writer of a format. If the format needs a package that is not installed, raises `SettingsError`.

    `enclosing_names` are the names of the objects that the fields are inside of, from the outermost. The bytes
    `schema_prefix` come before each value.
    """
    writer_class = _find_class(format, suffix="Writer")
    return cast(Writer, writer_class(format, tuple(enclosing_names), schema_prefix))


def schema_of(format: str, layout: Layout) -> WriterSchema | None:  # noqa: A002
    """Create the schema of values with this layout; None if the format has no schemas."""
    if format not in FORMATS_WITH_SCHEMA:
        return None
    return cast(WriterSchema, _import_format(format).schema_of(layout))


def _find_class(format: str, suffix: str) -> Any:  # noqa: A002
    """Return a class of a format's module, such as `JsonReader` for json."""
    module = _import_format(format)
    if module is None:  # a type of raw numbers, such as float32
        return getattr(import_module(f"{__name__}.npy"), f"Raw{suffix}")
    return getattr(module, f"{format.title()}{suffix}")


def _import_format(format: str) -> Any:  # noqa: A002
    """Import the module of a format, from this package or another one; None if no package has this format."""
    if format in BUILT_IN_FORMATS:
        with explain_missing_extra(format, needed_by=f"format {format}"):
            return import_module(f"{__name__}.{format}")
    try:
        return load_format(format)
    except ValueError as error:
        raise SettingsError(f"format: {error}") from None
