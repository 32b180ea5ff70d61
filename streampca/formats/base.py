"""The contract of a format: a reader turns a Kafka value into the numbers of its vectors, a writer the opposite."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampca.formats.errors import VectorError
from streampca.formats.fields import NumberFields
from streampca.formats.numbers import VectorBytes
from streampca.formats.schemas import Schemas
from streampca.settings.field_paths import Choice, Condition, Path, get_steps, parse_paths

# Limits of the size of a value. By default, Kafka's topics take 1 MiB.
MAX_OBJECT_BYTES = 8 * 2**20  # beyond the numbers of its vector: Python objects may take a hundred times these bytes
MAX_BATCH_BYTES = 64 * 2**20  # of a value with several vectors, both compressed and decompressed

_FLOAT64 = np.dtype(np.float64)

Fields: TypeAlias = Mapping[str, NDArray[Any]]
"""Named fields of n rows, (n,) or (n, width). The only field may be named "": then it is the whole value.

A field holds floats or whole numbers. An array of objects holds texts (n,) or (n, width), or bytes or None (n,).
"""

Kind: TypeAlias = Literal["number", "numbers", "integers", "text", "texts", "bytes"]
"""What a field holds in each row: "number" is one number, and "numbers" is an array of numbers."""

Counts: TypeAlias = NDArray[np.int64] | None
"""The number of rows in each value; None: each row is a value."""


@dataclass(eq=False)
class Reader(ABC):
    """Reads one format, for vectors of d numbers. A value holds one vector or, in some formats, several."""

    format: str
    dimensions: int
    field: str
    schemas: Schemas | None
    impute: bool  # whether an entry may be missing
    where: Sequence[Condition] = ()  # a value that does not meet these conditions holds no vector
    label: str = ""  # the path that `read_tree` is for; "": there are no labels
    dtype: np.dtype[Any] = _FLOAT64  # of the numbers that `read` returns
    raw_size: int | None = None
    """Bytes of a value, if a value is nothing but d numbers as they lie in memory; None if values must be parsed."""
    dtype_to_check: str | None = None
    """The NumPy type of raw numbers, if only a setting names it and may be wrong; checked by `formats.plausible`."""
    is_batch: ClassVar[bool] = False
    """A value is a batch even if it holds one vector: its outputs are lists, and it may be as large as a batch."""
    value_name: ClassVar[str] = "value"  # in messages

    def __post_init__(self) -> None:  # noqa: B027 - most formats need nothing
        """Prepare what a format needs."""

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Where the numbers are in a value that has fields."""
        return parse_paths(self.field)

    @cached_property
    def numbers(self) -> NumberFields:
        """Finds the numbers in a value that is a tree of objects and arrays."""
        return self.find_numbers_at(self.paths, self.where)

    def find_numbers_at(self, paths: Sequence[Path], where: Sequence[Condition]) -> NumberFields:
        """Return the `NumberFields` for the numbers at these paths, in values that meet the conditions."""
        return NumberFields(paths, self.dimensions, impute=self.impute, value_name=self.value_name, where=where)

    @abstractmethod
    def read(self, value: bytes) -> VectorBytes:
        """Return the d numbers of a value, or n·d numbers of a value with n vectors.

        If the value holds no vectors, raises `VectorError`. Raises also the schema registry's errors. The numbers need
        not be finite: the caller checks them.

        A reader that guesses float32 or float64 from the number of bytes returns `GuessedNumbers`.
        """

    def read_tree(self, value: bytes) -> Any:
        """Return what a value holds, as objects, arrays, texts and numbers.

        Is called only with values that `read` can read. If values of the format have no fields, raises `VectorError`.
        """
        raise VectorError("undecodable", f"values of format {self.format} have no fields")


@dataclass(eq=False)
class Writer(ABC):
    """Writes one format: values with named fields. A reader with the path of one of the fields reads it again."""

    format: str
    enclosing_names: tuple[str, ...]  # names of the objects that the fields are inside of, from the outermost
    schema_prefix: bytes  # comes before each value, and holds the id of its schema; b"" without a schema
    holds_names: ClassVar[bool] = False
    """Whether values have the names of their fields, and may hold integers, texts and bytes beside numbers."""

    @abstractmethod
    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a value for each row or, with `counts`, for each group of `counts[i]` rows. At least one row.

        In Avro and Protobuf, a value holds one row only.
        """


class Layout(NamedTuple):
    """The fields of a value, for its schema."""

    fields: Mapping[str, Kind]
    enclosing_names: tuple[str, ...] = ()  # names of the objects that the fields are inside of, from the outermost
    record: str = "Vector"  # the name of the type that has the fields

    @classmethod
    def of_vector(cls, format: str, field: str) -> "Layout":  # noqa: A002 - the setting's name
        """Return the layout of values with a vector at the paths of the setting `field`.

        With one path, the vector is an array at the end of the path. With several paths, each path ends at one number
        of the vector. If such values cannot be written, raises `ValueError`.
        """
        if not field.strip():
            # The name "" stands for the value itself. A column of Arrow needs a name.
            name = "vector" if format == "arrow" else ""
            return cls(fields={name: "numbers"})
        steps_of_paths = [get_steps(path) for path in parse_paths(field)]
        if any(isinstance(step, Choice) for steps in steps_of_paths for step in steps):
            raise ValueError(f"field {field}: a path that chooses elements of an array cannot be written")
        if format == "csv":
            raise ValueError("a written line of CSV has only the cells of its vector: leave field unset")
        # No path chooses an element, so each step is a name. `str` only says so to the type checker.
        names_of_paths = [tuple(map(str, steps)) for steps in steps_of_paths]
        enclosing_names = names_of_paths[0][:-1]
        if any(names[:-1] != enclosing_names for names in names_of_paths):
            raise ValueError(f"field {field}: values are written only where all paths lead into the same object")
        has_one_path = len(names_of_paths) == 1
        kind: Kind = "numbers" if has_one_path else "number"
        return cls(fields={names[-1]: kind for names in names_of_paths}, enclosing_names=enclosing_names)
