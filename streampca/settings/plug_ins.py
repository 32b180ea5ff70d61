"""Formats and stores of other packages, which are found by the entry points of installed packages."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

import numpy as np

from streampca.errors import on_one_line

FORMATS_WITH_SCHEMA = ("avro", "protobuf")  # their values have the id of a schema in the schema registry
BUILT_IN_FORMATS = ("json", "csv", "npy", "arrow", *FORMATS_WITH_SCHEMA)

Kind = Literal["format", "store"]


def load_plug_in(kind: Kind, name: str, *, is_reserved: bool = False) -> Any:
    """Import a format or store that an installed package offers; return None if no package does.

    Raises `ValueError` if a package offers a reserved name, if several packages offer the name, or if the import fails.
    """
    plug_ins = [entry_point for entry_point in _find_plug_ins(kind) if entry_point.name == name]
    if not plug_ins:
        return None
    packages = " and ".join(_name_package(entry_point) for entry_point in plug_ins)
    if is_reserved:
        raise ValueError(f"{packages} offers the {kind} {name}, a name that streampca reserves: rename or uninstall it")
    if len(plug_ins) > 1:
        raise ValueError(f"{packages} both offer the {kind} {name}: uninstall one of them")
    plug_in = plug_ins[0]
    try:
        return plug_in.load()
    except Exception as error:
        cause = f"{type(error).__name__}: {on_one_line(error)}"
        raise ValueError(f"the {kind} {name} of {packages} cannot be imported from {plug_in.value}: {cause}") from None


def load_format(name: str) -> Any:
    """Return the module of a format that another package offers; None if no package does.

    Raises `ValueError` if the module lacks a class, such as `TextReader` for the format text, or if the name is
    reserved: plug-ins must not have the name of a built-in format, or of any NumPy type.
    """
    is_reserved_name = name in BUILT_IN_FORMATS or find_numpy_type(name) is not None
    module = load_plug_in("format", name, is_reserved=is_reserved_name)
    if module is None:
        return None
    for role in ("Reader", "Writer"):
        class_name = name.title() + role
        if not hasattr(module, class_name):
            raise ValueError(f"the module of the format {name}, {module.__name__}, has no class {class_name}")
    return module


def find_numpy_type(name: str) -> np.dtype[Any] | None:
    """Return the NumPy type with this name; None if NumPy has no such type."""
    try:
        return np.dtype(name)
    except Exception:  # NumPy raises TypeError, SyntaxError or a deprecation warning, depending on the name
        return None


@cache  # looking through all installed packages takes tens of milliseconds
def _find_plug_ins(kind: Kind) -> list[EntryPoint]:
    """Return the entry points of all plug-ins of a kind, sorted by package, so that errors name them in one order."""
    return sorted(entry_points(group=f"streampca.{kind}s"), key=_name_package)


def _name_package(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist else entry_point.value
