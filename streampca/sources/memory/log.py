"""The log of one partition in memory."""

import bisect
from dataclasses import dataclass, field

from streampca.fold.record import PlainRecord


@dataclass
class Log:
    """Records in order of offset, start <= offset < end, possibly with gaps."""

    start: int = 0
    end: int = 0
    records: list[PlainRecord] = field(default_factory=list)
    leader_epoch: int = 0

    def append(self, value: bytes | None, timestamp: int, key: bytes | None) -> None:
        """Append a record."""
        self.records.append(PlainRecord(self.end, value, timestamp, key, (), self.leader_epoch))
        self.end += 1

    def read(self, position: int, limit: int) -> list[PlainRecord]:
        """Up to `limit` records from a position on."""
        first = bisect.bisect_left(self.records, position, key=lambda record: record.offset)
        return self.records[first : first + limit]

    def trim(self, start: int) -> None:
        """Remove the records before an offset."""
        self.records = [record for record in self.records if record.offset >= start]
        self.start, self.end = start, max(start, self.end)

    def truncate(self, end: int) -> None:
        """Remove the records from an offset on; another leader writes the next ones."""
        self.records = [record for record in self.records if record.offset < end]
        self.end, self.leader_epoch = end, self.leader_epoch + 1

    def end_of(self, epoch: int) -> int:
        """The end of the records that were written until that leader epoch."""
        return next((record.offset for record in self.records if record.leader_epoch > epoch), self.end)
