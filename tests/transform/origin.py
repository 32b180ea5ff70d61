"""The header of an output."""

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from streampca.transform.outputs import ORIGIN


class Origin(NamedTuple):
    """By which model and of which record an output was made."""

    model_version: int
    partition: int
    offset: int


def origin_of_output(headers: Iterable[tuple[str, bytes | None]]) -> Origin:
    """The origin in these headers."""
    (value,) = (value for name, value in headers if name == ORIGIN)
    return Origin(**orjson.loads(value or b""))
