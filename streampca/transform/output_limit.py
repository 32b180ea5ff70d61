"""The largest output that the output topic takes, and the rejection of outputs that are larger."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from streampca.sources.base import Outgoing, OutgoingFields
from streampca.sources.record_size import record_size
from streampca.transform.record_packer import parse_origin

_LIMIT_OPTION = "max.message.bytes"  # of a topic


@dataclass(frozen=True)
class OutputLimit:
    """The size of the largest record that the output topic takes, as far as this member knows."""

    max_record_bytes: float = math.inf
    max_record_bytes_by_options: float = math.inf  # by the options of the topic alone, without what brokers refused
    has_refused: bool = False  # a broker has refused a record as too large

    def with_options(self, configs: Mapping[str, str]) -> "OutputLimit":
        """Return the limit after the options of the topic were read again.

        After a broker has refused a record, the limit may be lower than the options say. The lower limit is kept until
        the options change.
        """
        by_options = float(configs.get(_LIMIT_OPTION, self.max_record_bytes_by_options))
        if by_options == self.max_record_bytes_by_options:
            return self
        return replace(self, max_record_bytes=by_options, max_record_bytes_by_options=by_options)

    def after_refusal(self, size: int) -> "OutputLimit":
        """Return the limit after a broker has refused a single record of this size, in bytes."""
        lower_limit = min(self.max_record_bytes, size) - 1  # the same record is not sent again
        return replace(self, max_record_bytes=lower_limit, has_refused=True)

    def find_too_large(self, topic: str, outputs: Sequence[OutgoingFields]) -> dict[int, str]:
        """Return an error message for each output above the limit, by the offset of its first input record."""
        errors: dict[int, str] = {}
        if not self._may_be_exceeded(outputs):
            return errors
        for fields in outputs:
            output = Outgoing(*fields)
            size = record_size(output.value, output.key, output.headers)
            if size > self.max_record_bytes:
                _, header_value = output.headers[-1]  # of the header `ORIGIN`, which a packer adds last
                origin = parse_origin(header_value)
                errors[origin.offset] = (
                    f"its output has {size} bytes, more than {topic} takes: raise its {_LIMIT_OPTION}, or emit less"
                )
        return errors

    def _may_be_exceeded(self, outputs: Sequence[OutgoingFields]) -> bool:
        """Return whether an output may be too large. As an optimisation, only the lengths of values are measured.

        A value may take half of the limit. The other half is left to key and headers, which seldom need it all. If they
        do, a broker refuses the output, and from then on (`has_refused`) every output is checked exactly.
        """
        sizes = [len(value or b"") for _topic, _partition, value, _key, _headers, _timestamp in outputs]
        longest_value = max(sizes, default=0)
        return self.has_refused or longest_value >= self.max_record_bytes / 2
