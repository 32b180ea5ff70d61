"""Decodes the records that a source returns."""

import numpy as np

from streampca.formats.codec import Codec
from streampca.formats.record import timestamps_of
from streampca.sources.events import Records, Undecoded, Vectors


def decode_records(codec: Codec, event: Records) -> Vectors | Undecoded:
    """Decode the records of one event; `Undecoded` while the schema registry is away. Any thread may call it.

    Stops early, with `next` at the first record that is left, when the vectors have become large. Raises `SourceError`
    if the registry refuses access.
    """
    records = event.records
    try:
        decoded, taken = codec.decode_some(codec.values_of(records))
    except TimeoutError as error:
        return Undecoded(event.partition, records[0].offset, len(records), event.end, str(error))
    timestamps = np.array(timestamps_of(records), np.int64)[decoded.indices]
    after = event.next if taken == len(records) else records[taken].offset
    return Vectors(decoded, timestamps, records[:taken], after, event.partition, event.end)
