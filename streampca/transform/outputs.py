"""Makes the messages that transform writes: one for each record that was read, or one for many records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from streampca.fold.model_file import PublishedModel
from streampca.formats.base import Fields
from streampca.formats.codec import Codec
from streampca.formats.record import LastRecord, Record, Reject, headers_of, keys_of, offsets_of, values_of
from streampca.sources.base import Outgoing, OutgoingFields
from streampca.sources.dead_letters import dead_letter_headers
from streampca.sources.events import Vectors
from streampca.transform.models import CurrentModel
from streampca.transform.output_fields import OutputFields
from streampca.transform.output_limit import OutputLimit
from streampca.transform.record_packer import Packer, ProjectedRecords

T = TypeVar("T")

OUTPUT_TOO_LARGE = "output_too_large"


class TransformedBatch(NamedTuple):
    """A batch, and its outputs by one version of the model."""

    # As an optimisation, the batch has no records and vectors any more, unless a record was rejected: the next batch
    # uses their memory, while it is in the processor's cache.
    batch: Vectors
    input_record_count: int  # of all records that the batch had
    last: LastRecord | None  # of these records
    outputs: list[OutgoingFields]
    output_record_count: int  # of the records that have an output
    version: int  # of the model


@dataclass(frozen=True)
class Outputs:
    """Makes the outputs of records, in the partition of the same number."""

    topic: str
    codec: Codec
    model: CurrentModel
    output_fields: OutputFields  # must compute p if `only_p_below` is set
    packer: Packer
    source_topic: str
    dead_letter_topic: str | None = None
    only_p_below: float | None = None  # leave out a record unless one of its vectors has a lower p-value
    source_topic_id: str = ""  # in the headers of outputs; "" if the brokers give topics no ids

    def project(self, published: PublishedModel, limit: OutputLimit, batch: Vectors) -> TransformedBatch:
        """Project decoded records with a model, and reject records whose outputs are too large.

        If an Arrow message of several records is too large, its first record is rejected, and the others are projected
        again.
        """
        projected = self._project_records(published, batch)
        outputs: list[OutgoingFields] = []
        output_record_count = 0
        if projected is not None:  # None: no record gets an output
            outputs.extend(self.packer.pack(self.topic, projected, limit.max_record_bytes))
            output_record_count = len(projected.counts)
        too_large = limit.find_too_large(self.topic, outputs)  # error messages by offset
        if too_large:  # the recursion ends, since each call rejects at least one more record
            return self.project(published, limit, batch.reject(OUTPUT_TOO_LARGE, too_large))
        has_rejects = len(batch.decoded.rejects) > 0
        return TransformedBatch(
            batch=batch if has_rejects else _without_content(batch),  # a dead letter needs the content of its record
            input_record_count=len(batch.records),
            last=batch.last,
            outputs=outputs,
            output_record_count=output_record_count,
            version=published.version,
        )

    def _project_records(self, published: PublishedModel, batch: Vectors) -> ProjectedRecords | None:
        """Return the records of a batch that get outputs, with their fields; None if no record gets an output."""
        if len(batch.decoded.indices) == 0:
            return None
        offsets = offsets_of(batch.records)[batch.decoded.indices]  # of the records that hold vectors
        counts = batch.decoded.counts
        # How a vector is rounded depends on its row in a tile, so the row must not depend on the records around it. A
        # single vector gets the row offset % 32, and a record that may have several vectors gets tiles of its own.
        may_have_several_vectors = self.codec.is_batch  # in this format, any record may have several
        have_own_tiles = (counts > 1) | may_have_several_vectors
        fields = self.output_fields.project(published, batch.decoded.vectors, offsets, counts, have_own_tiles)
        if self.only_p_below is not None:
            is_unusual = fields["p"] < self.only_p_below
            has_output = _any_in_record(is_unusual, counts)
            if not has_output.any():
                return None
            fields, batch = _select_records(has_output, fields, batch)
            offsets = offsets[has_output]
        return self._build_projected_records(batch, published.version, fields, offsets)

    def _build_projected_records(
        self, batch: Vectors, version: int, computed_fields: Fields, offsets: NDArray[np.int64]
    ) -> ProjectedRecords:
        """Combine the fields that this version of the model has computed with what is copied from the records.

        Copied are key, headers, timestamp, and fields such as the label. Records without vectors are left out.
        """
        all_fields = {**computed_fields, **self._copy_fields(batch)}
        # `all_fields` may have p only because it was needed to select records; `kinds` are the fields of the output.
        emitted_fields = {name: all_fields[name] for name in self.output_fields.kinds}
        indices = batch.decoded.indices
        return ProjectedRecords(
            topic_id=self.source_topic_id,
            partition=batch.partition,
            version=version,
            fields=emitted_fields,
            counts=batch.decoded.counts,
            keys=_select(keys_of(batch.records), indices),
            headers=_select(headers_of(batch.records), indices),
            offsets=offsets,
            timestamps=batch.timestamps,  # a batch has timestamps only of the records that hold vectors
        )

    def _copy_fields(self, batch: Vectors) -> Fields:
        """Return the emitted fields (n rows) that are copied from records: the value of a record, and its labels."""
        indices = batch.decoded.indices  # of the m records that hold vectors
        counts = batch.decoded.counts  # (m,), how many vectors each of these records holds
        fields: dict[str, NDArray[Any]] = {}
        if "record" in self.output_fields.kinds:
            values = _select(values_of(batch.records), indices)
            fields["record"] = _put_in_first_rows(values, counts)  # a value with several vectors is emitted once
        if "label" in self.output_fields.kinds:
            labels = self.codec.read_labels([batch.records[i] for i in indices.tolist()], counts)
            fields["label"] = np.array(labels, object)
        return fields

    def make_dead_letter(self, partition: int, record: Record, reject: Reject) -> Outgoing:
        """Return the dead letter of a rejected record. Without a dead-letter topic, raises `ValueError`."""
        if self.dead_letter_topic is None:
            raise ValueError("dead_letter_topic is not set")
        headers = dead_letter_headers(self.source_topic, partition, record, reject.reason, reject.message)
        return Outgoing(
            self.dead_letter_topic,
            partition=None,  # the key decides
            value=record.value,
            key=record.key,
            headers=headers,
            timestamp=-1,  # the time of sending
        )


def _without_content(batch: Vectors) -> Vectors:
    """Return a batch without its vectors and records, so that their memory can be used again."""
    without_vectors = batch.decoded._replace(vectors=np.zeros((0, 0)))
    return replace(batch, decoded=without_vectors, records=())


def _select_records(is_chosen: NDArray[np.bool_], fields: Fields, batch: Vectors) -> tuple[Fields, Vectors]:
    """Return the fields and the batch with only the chosen records.

    `is_chosen` (m,) has an item for each record that holds vectors. The fields have a row for each vector.
    """
    vectors_per_record = batch.decoded.counts  # (m,)
    is_row_chosen = np.repeat(is_chosen, vectors_per_record)
    chosen_fields = {name: values[is_row_chosen] for name, values in fields.items()}
    chosen = batch.decoded.keep_values(is_chosen)
    chosen_timestamps = batch.timestamps[is_chosen]  # `timestamps` (m,) has one item for each record, too
    return chosen_fields, replace(batch, decoded=chosen, timestamps=chosen_timestamps)


def _any_in_record(is_true: NDArray[np.bool_], vector_counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each of m records whether `is_true` (n,) holds for any of its vectors.

    `vector_counts` (m,) says how many vectors each record has, at least one: `reduceat` returns a wrong value for none.
    """
    first_rows = np.cumsum(vector_counts) - vector_counts
    return np.logical_or.reduceat(is_true, first_rows)


def _put_in_first_rows(values: Sequence[bytes | None], vector_counts: NDArray[np.int64]) -> NDArray[Any]:
    """Return a column (n,) with the value of a record in the row of its first vector.

    The rows of its other vectors have None. `vector_counts` (m,) says how many vectors each record has.
    """
    column = np.empty(int(vector_counts.sum()), object)
    first_rows = np.cumsum(vector_counts) - vector_counts
    column[first_rows] = np.array(values, object)
    return column


def _select(column: list[T], indices: NDArray[np.int64]) -> list[T]:
    """Return the items at these indices, which are ascending and different."""
    has_all = len(indices) == len(column)
    return column if has_all else [column[i] for i in indices]
