"""Where a partition is resumed whose log does not hold the next record any more."""

from dataclasses import replace

import pytest

from streampca.consumer_group.offset_gap import OffsetGapPolicy
from streampca.errors import OffsetGapError, SourceError
from streampca.fold.events import OutOfRange


def policy(on_offset_gap: str) -> OffsetGapPolicy:
    return OffsetGapPolicy("readings", on_offset_gap, "another store folder")


GAP = OutOfRange(partition=3, position=10, earliest=50, latest=90)


def test_an_offset_gap_is_resolved_by_the_policy() -> None:
    assert policy("earliest").resolve(GAP) == 50
    assert policy("latest").resolve(GAP) == 90
    with pytest.raises(OffsetGapError, match=r"partition 3 of readings: offset 10 .*retention.* 50") as refusal:
        policy("fail").resolve(GAP)
    assert "on_offset_gap" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("on_offset_gap", ["fail", "earliest", "latest"])
@pytest.mark.parametrize("position", [50, 70, 90, 91])
def test_a_log_that_lost_records_that_were_read_is_refused(on_offset_gap: str, position: int) -> None:
    with pytest.raises(OffsetGapError, match=rf"offset {position} .*50 to 90.*lost") as refusal:
        policy(on_offset_gap).resolve(replace(GAP, position=position))
    assert isinstance(refusal.value, SourceError)
    assert "store folder" in str(refusal.value)
    assert "\n" not in str(refusal.value)
