"""Numbers that mean "missing": which entries become NaN, and how the numbers are spelled."""

import math

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from streampca.pca.missing_values import MissingValues, normalize_missing_values
from tests.errors import refusal

FILL = 9.96921e36  # of netCDF; as a float32 it is another number
NUMBERS = st.sampled_from([-200.0, 0.0, -9999.9, FILL, float(np.float32(FILL)), 1e300, 2.0**24 + 1, 2.0**24, math.inf])


def means_missing(entry: float, numbers: list[float], precision: type[np.floating]) -> bool:
    """One number after the other: the same number, or the same finite number after rounding."""

    def rounded(number: float) -> float:
        with np.errstate(over="ignore"):
            return float(precision(number))

    for number in numbers:
        if number == entry or (math.isfinite(rounded(number)) and rounded(number) == rounded(entry)):
            return True
    return False


@given(
    numbers=st.lists(st.one_of(NUMBERS, st.floats(allow_nan=False)), max_size=4),
    entries=st.lists(st.one_of(NUMBERS, st.floats(), st.just(-0.0)), min_size=1, max_size=6),
    data_type=st.sampled_from(["float64", ">f8", "float32", ">f4", "float16"]),
    dtype=st.sampled_from(["float64", "float32"]),
)
@example(numbers=[FILL], entries=[float(np.float32(FILL))], data_type="float64", dtype="float32")
@example(numbers=[FILL], entries=[FILL], data_type="float32", dtype="float64")
@example(numbers=[-1.7976931348623157e308], entries=[-math.inf], data_type="float64", dtype="float32")
def test_numbers_become_nan_if_they_are_equal_in_the_precision_of_model_and_data(
    numbers: list[float], entries: list[float], data_type: str, dtype: str
) -> None:
    with np.errstate(over="ignore"):
        V = np.array([entries]).astype(data_type)
    before = V.tobytes()
    precision = min(np.dtype(data_type).newbyteorder("="), np.dtype(dtype), key=lambda kind: kind.itemsize).type
    expected = [math.isnan(entry) or means_missing(entry, numbers, precision) for entry in V[0].tolist()]
    with_gaps = MissingValues.of(normalize_missing_values(numbers), dtype).to_nan(V)
    assert np.isnan(with_gaps).tolist() == [expected]
    assert with_gaps[~np.isnan(with_gaps)].tolist() == V[~np.array([expected])].tolist()
    assert (with_gaps.dtype, V.tobytes()) == (V.dtype, before)


@pytest.mark.parametrize("numbers", ["", "-9999"])
def test_vectors_without_missing_values_are_not_copied(numbers: str) -> None:
    V = np.array([[1.0, np.nan, np.inf]])
    assert MissingValues.of(numbers, "float32").to_nan(V) is V


@given(numbers=st.lists(st.floats()))
def test_each_way_to_give_numbers_has_one_spelling(numbers: list[float]) -> None:
    text = normalize_missing_values(numbers)
    assert list(MissingValues.of(text, "float64").numbers) == sorted({n + 0.0 for n in numbers if not math.isnan(n)})
    spelled = ",".join(f" {number!r} " for number in reversed(numbers))
    assert text == normalize_missing_values(spelled) == normalize_missing_values(np.array(numbers * 2))
    assert normalize_missing_values(text) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, ""), ("", ""), (" ", ""), ([], ""), ("nan", ""), (float("nan"), ""), (-200, "-200"), ("-0", "0"),
        ([0.5, -9999], "-9999, 0.5"), ("-200, 9.96921e36", "-200, 9.96921e+36"), ("-inf", "-inf"), (10**22, "1e+22"),
    ],
)  # fmt: skip
def test_numbers_are_spelled_in_ascending_order(given: object, text: str) -> None:
    assert normalize_missing_values(given) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["x", "-200,", "1;2", True, [None], {}, 1j, 10**400, ["-200, 5"]])
def test_anything_else_is_refused(given: object) -> None:
    assert "is not a number" in refusal(ValueError, normalize_missing_values, given)
