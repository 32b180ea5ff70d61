"""Packs what was computed of records into messages: one for each record, or one for many of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.sources.dead_letter_headers import Headers
from streampca.sources.transactions import Outgoing
from streampca.transform.encoding import Encode
from streampca.transform.projection import Fields

VERSION, PARTITION, OFFSET = "streampca.model-version", "streampca.partition", "streampca.offset"
"""Headers of outputs: the version of the model, and where the record was read; decimal numbers as text."""


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
    def messages(self, topic: str, selection: Selection) -> Iterable[Outgoing]:
        """The messages of one or more records, to the partition of the same number."""


class RecordPacker(Packer):
    """A message for each record, with its key, timestamp and headers."""

    def __init__(self, encode: Encode, *, several: bool) -> None:
        """`several`: whether a record may hold several vectors."""
        self._encode, self._several = encode, several

    def messages(self, topic: str, selection: Selection) -> Iterable[Outgoing]:
        values, extra = self._encode(selection.fields, selection.counts if self._several else None)
        version, partition, _ = origin_headers(selection.version, selection.partition, 0)
        headers = [
            [*own, version, partition, (OFFSET, b"%d" % offset)]
            for own, offset in zip(selection.headers, selection.offsets.tolist(), strict=True)
        ]
        for of_record, header in zip(headers, extra, strict=True) if extra else ():
            of_record.append(header)
        timestamps = selection.timestamps.tolist()
        columns = zip(repeat(topic), repeat(selection.partition), values, selection.keys, headers, timestamps)
        return map(_outgoing, columns)


def origin_headers(version: int, partition: int, offset: int) -> Headers:
    """The headers that every output has."""
    return [(VERSION, b"%d" % version), (PARTITION, b"%d" % partition), (OFFSET, b"%d" % offset)]


_outgoing = partial(tuple.__new__, Outgoing)  # as `Outgoing._make`, in half the time
