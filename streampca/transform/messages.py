"""Packs what was computed of records into messages: one for each record, or one for many of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.formats.base import Fields, Writer
from streampca.sources.base import OutgoingFields

ORIGIN = "streampca.transform"
"""Header of outputs: the version of the model, and where the record was read, as JSON.

It is one header, since three of them made a member with confluent-kafka a fifth slower.
"""


class Selection(NamedTuple):
    """The m records of a batch that are written, and what was computed of their n vectors."""

    partition: int
    version: int  # of the model
    fields: Fields
    counts: NDArray[np.int64]  # (m,), vectors of each
    keys: Sequence[bytes | None]
    headers: Sequence[Sequence[tuple[str, bytes | None]]]
    offsets: NDArray[np.int64]  # (m,)
    timestamps: NDArray[np.int64]  # (m,), milliseconds since 1970; -1 if unknown


class Packer(ABC):
    """Packs records into messages."""

    @abstractmethod
    def messages(self, topic: str, selection: Selection) -> Iterable[OutgoingFields]:
        """The messages of one or more records, to the partition of the same number."""


class RecordPacker(Packer):
    """A message for each record, with its key, timestamp and headers."""

    def __init__(self, writer: Writer, *, several: bool) -> None:
        """With `several`, a record may hold several vectors."""
        self._writer, self._several = writer, several

    def messages(self, topic: str, selection: Selection) -> Iterable[OutgoingFields]:
        values = self._writer.write(selection.fields, selection.counts if self._several else None)
        origin = _origin_at(selection.version, selection.partition)
        headers = [
            [*own, (ORIGIN, origin % offset)]
            for own, offset in zip(selection.headers, selection.offsets.tolist(), strict=True)
        ]
        timestamps = selection.timestamps.tolist()
        return zip(repeat(topic), repeat(selection.partition), values, selection.keys, headers, timestamps)


def origin_header(version: int, partition: int, offset: int) -> tuple[str, bytes]:
    """The header that every output has."""
    return ORIGIN, _origin_at(version, partition) % offset


def _origin_at(version: int, partition: int) -> bytes:
    """The header's value, to be formatted with the offset."""
    return b'{"model_version":%d,"partition":%d,"offset":%%d}' % (version, partition)
