"""The contract of a format: a reader turns a Kafka value into the numbers of its vectors, a writer the opposite."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampca.formats.fields import NumberFields
from streampca.formats.numbers import Guessed, VectorBytes
from streampca.formats.schemas import Schemas
from streampca.settings.field_paths import Path, paths_of

MAX_OBJECT_BYTES = 8 * 2**20  # of a value beyond its numbers: Python objects may take a hundred times its bytes
MAX_BATCH_BYTES = 64 * 2**20  # of a value with several vectors, packed and unpacked; topics take 1 MiB by default

_FLOAT64 = np.dtype(np.float64)

Fields: TypeAlias = Mapping[str, NDArray[Any]]
"""Named fields of n rows, (n,) or (n, width). The only field may be named "": then it is the whole value.

Besides numbers and whole numbers, an array of objects holds texts (n, width), or bytes (n,) or None.
"""

Kind: TypeAlias = Literal["number", "numbers", "integers", "texts", "bytes"]
"""What a field holds: one, or several in each row."""

Counts: TypeAlias = NDArray[np.int64] | None
"""The number of rows in each value; None: one."""


@dataclass(eq=False)
class Reader(ABC):
    """One format, for vectors of d numbers, which a value has one of, or several."""

    format: str
    dimensions: int
    field: str
    schemas: Schemas | None
    impute: bool
    dtype: np.dtype[Any] = _FLOAT64  # of the numbers that `read` returns
    size: int | None = None
    """Bytes of a value, if every value of that size is d numbers as it stands; None if values must be parsed."""
    guessed: str | None = None
    """The NumPy type of all numbers, if no value names it and the setting may be wrong (`formats.plausible`)."""
    is_batch: ClassVar[bool] = False
    """A value is a batch even if it holds one vector: its outputs are lists, and it may be as large as a batch."""
    kind: ClassVar[str] = "value"  # what messages call it

    def __post_init__(self) -> None:  # noqa: B027 - most formats need nothing
        """Prepare what a format needs."""

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Where the numbers are in a value that has fields."""
        return paths_of(self.field)

    @cached_property
    def numbers(self) -> NumberFields:
        """What finds the numbers in a value that is a tree of objects and arrays."""
        return NumberFields(self.paths, self.dimensions, impute=self.impute, kind=self.kind)

    @abstractmethod
    def read(self, value: bytes) -> VectorBytes | Guessed:
        """The d numbers of a value, or n·d numbers of a batch; `Guessed` if their type follows from their length.

        Raises `VectorError` if the value holds no vectors, and the schema registry's errors, which are not the value's
        fault. Does not check whether the numbers are finite and small enough.
        """


@dataclass(eq=False)
class Writer(ABC):
    """One format, for rows of named fields; a reader with the path of one of them reads it again."""

    format: str
    around: tuple[str, ...]
    frame: bytes

    @abstractmethod
    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """One value a row, or one per group of `counts` rows; n > 0. Avro and Protobuf hold one row only."""


class Layout(NamedTuple):
    """The fields of a value, for its schema."""

    fields: Mapping[str, Kind]
    around: tuple[str, ...] = ()  # names of the objects that they are inside of
    record: str = "Vector"  # the name of their type

    @classmethod
    def of_vector(cls, format: str, field: str) -> "Layout":  # noqa: A002 - the setting's name
        """A vector alone, where a reader with this `field` looks for it: at the path; or d numbers, at d paths.

        Without a path it is the value itself; in arrow a column. Raises `ValueError` for paths that differ before their
        last names.
        """
        paths = [[part.name for part in path] for path in paths_of(field)] or [["vector" if format == "arrow" else ""]]
        if any(path[:-1] != paths[0][:-1] for path in paths):
            raise ValueError(f"field {field}: values are written only where all paths lead into the same object")
        kind: Kind = "numbers" if len(paths) == 1 else "number"
        return cls({path[-1]: kind for path in paths}, tuple(paths[0][:-1]))
