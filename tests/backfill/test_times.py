"""Times in columns of files: typed ones are taken as they are, whole numbers only if they can be milliseconds."""

import pyarrow as pa
import pytest

from streampca.backfill.folding import convert_to_milliseconds
from streampca.errors import InputError

MS = 1_767_225_600_123


@pytest.mark.parametrize(
    "column",
    [
        pa.array([MS, None]),
        pa.array([MS, None], pa.timestamp("ms")),
        pa.array([MS * 1000 + 456, None], pa.timestamp("us", "America/New_York")),
        pa.array([MS * 1_000_000, None], pa.timestamp("ns")),
        pa.array(["2026-01-01T00:00:00.123Z", None]),
        pa.array(["2026-01-01T02:00:00.123456789+02:00", None]),
        pa.array(["2026-01-01 00:00:00.123", None], pa.large_string()),
        pa.array([str(MS), None]),
    ],
    ids=lambda column: f"{column.type} {column[0]}",
)
def test_times_are_milliseconds(column: pa.Array) -> None:
    assert convert_to_milliseconds(column, "time").tolist() == [MS, -1]


@pytest.mark.parametrize(("year", "ms"), [(1970, 0), (2200, 7_258_118_400_000)])
@pytest.mark.parametrize("kind", [pa.string(), pa.date32()])
def test_typed_times_are_never_refused(year: int, ms: int, kind: pa.DataType) -> None:
    assert convert_to_milliseconds(pa.array([f"{year}-01-01"]).cast(kind), "time").tolist() == [ms]


@pytest.mark.parametrize(
    ("number", "unit"),
    [(MS // 1000, "seconds"), (MS * 1000, "microseconds"), (MS * 1_000_000, "nanoseconds"), (0, ""), (2**62, "")],
)
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_whole_numbers_of_other_units_are_refused(number: int, unit: str, kind: pa.DataType) -> None:
    with pytest.raises(InputError, match=f"column time holds {number}, .* 1990 and 2100") as caught:
        convert_to_milliseconds(pa.array([MS, None, number]).cast(kind), "time")
    assert ("it may be a time in" in str(caught.value)) == bool(unit)
    assert unit in str(caught.value)


@pytest.mark.parametrize("value", [1.7e9, "yesterday", True])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"column time holds .*, not times or milliseconds"):
        convert_to_milliseconds(pa.array([value]), "time")
