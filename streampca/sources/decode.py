"""Decodes the records that a source returns."""

from streampca.formats.codec import LARGE_BATCH, Codec
from streampca.sources.events import Records, Undecoded, Vectors


def decode_records(codec: Codec, event: Records) -> Vectors | Undecoded:
    """Decode the records of one event; `Undecoded` while the schema registry is away. Any thread may call it.

    Stops early, with `next` at the first record that is left, when the vectors have become large. Raises `SourceError`
    if the registry refuses access.
    """
    records = event.records
    try:
        batch = codec.batch_of(records, event.next, LARGE_BATCH)
    except TimeoutError as error:
        return Undecoded(event.partition, records[0].offset, len(records), event.end, str(error))
    return Vectors(batch.decoded, batch.timestamps, batch.records, batch.next, event.partition, event.end)
