"""Lines of CSV: separators, and what a cell may be, as in files."""

import base64
import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from tests.formats.structured import assert_rejected, codec, skipped_in


@pytest.mark.parametrize(
    "line", ["1,2.5,1e3", "1;2.5;1e3\r\n", "\ufeff1\t2.5\t1E3", "true  2.5 +1000.", " TRUE , 2.5 ,1000", "01;2.50;+1e3"]
)
def test_a_line_may_have_any_separator_and_spelling_of_numbers(line: str) -> None:
    assert codec("csv").decode([line.encode()]).vectors.tolist() == [[1, 2.5, 1000]]


@pytest.mark.parametrize("cell", ["", "NA", "na", "NaN", "Null"])
def test_cells_may_be_missing(cell: str) -> None:
    decoded = codec("csv", min_observed=1).decode([f"1,{cell},3".encode()])
    np.testing.assert_array_equal(decoded.vectors, [[1, np.nan, 3]])


@pytest.mark.parametrize(
    "word",
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
     "NULL", "NaN", "None", "n/a", "nan", "null", "-", "?", ".", "n.a.", "#DIV/0!", "-nan(ind)", "missing"],
)  # fmt: skip
def test_words_are_missing_as_in_pandas_and_messages_list_them(word: str) -> None:
    decoded = codec("csv", min_observed=1).decode([f"{word},1,2".encode()])
    if pd.read_csv(io.StringIO(f"a,b,c\n{word},1,2\n"))["a"].isna()[0]:
        np.testing.assert_array_equal(decoded.vectors, [[np.nan, 1, 2]])
    else:
        assert_rejected(decoded, "undecodable", f"{word!r} is not a number (missing numbers are empty, NaN, NA, N/A")


LINE = '2026-01-31,"Hall 2; east",21.5,48,true'


@pytest.mark.parametrize(
    ("line", "field", "row"),
    [
        (LINE, "2,3,4", [21.5, 48, 1]),
        (LINE, "4,2,3", [1, 21.5, 48]),
        (LINE.replace("true", '"1e3"') + ",", "2,3,4", [21.5, 48, 1000]),
        ("Stra\udcdfe;21.5;48;1", "1,2,3", [21.5, 48, 1]),
        ('"a\nb" 21.5 "48" 1', "1,2,3", [21.5, 48, 1]),
        ('"21.5","48","1"', "", [21.5, 48, 1]),
        ("21.5,48,1,", "", [21.5, 48, 1]),
        ("21.5;48;1;\r\n", "", [21.5, 48, 1]),
        ('7,"[21.5, 48, 1]"', "1", [21.5, 48, 1]),
        ('7;"[21.5 48.\n 1. ]"', "1", [21.5, 48, 1]),
        ("7;{21.5,48,1}", "1", [21.5, 48, 1]),
        (f"7,{base64.b64encode(np.array([21.5, 48, 1]).tobytes()).decode()}", "1", [21.5, 48, 1]),
    ],
)
def test_cells_are_read_by_position_and_may_be_quoted(line: str, field: str, row: list[float]) -> None:
    decoded = codec("csv", field).decode([line.encode(errors="surrogateescape")])
    assert decoded.vectors.tolist() == [row], decoded.rejects


@given(st.permutations(range(6)), st.integers(1, 6))
def test_positions_choose_as_indices_do(order: list[int], d: int) -> None:
    numbers = np.arange(6) ** 2 + 0.5
    line = ",".join(map(str, numbers))
    decoded = codec("csv", ",".join(map(str, order[:d])), d=d).decode([line.encode()])
    assert decoded.vectors.tolist() == [numbers[order[:d]].tolist()]


def test_a_cell_without_a_vector_is_skipped_like_null() -> None:
    assert skipped_in(codec("csv", "1").decode([b"7,NULL", b"8,"])) == [0, 1]


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        (b"a,b,1,2", "wrong_length", "4 cells, none at the position 4"),
        (b"", "wrong_length", "0 cells, none at the position 4"),
        (b"a,b,1,2,x", "undecodable", "'x' is not a number"),
        (b"a,b,1,2,3\na,b,4,5,6", "undecodable", "several lines"),
        (b"a b 1 2 3\na b 4 5 6", "undecodable", "several lines"),
        (b'a,"b"\n1,2,3,4,5', "undecodable", "several lines"),
    ],
)
def test_lines_without_these_cells_are_rejected(line: bytes, reason: str, words: str) -> None:
    assert_rejected(codec("csv", "2,3,4").decode([line]), reason, words)


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        (b"1,,3", "not_finite", "missing=impute"),
        (b"1,nA,3", "not_finite", "missing=impute"),
        (b"1,x,3", "undecodable", "'x' is not a number"),
        (b"1_0,2,3", "undecodable", "'1_0' is not a number"),
        (b"1,5;2;3", "undecodable", "'1,5' is not a number"),
        (b"1;[2];3", "undecodable", "'[2]' is not a number"),
        (b"1;{};3", "undecodable", "'{}' is not a number"),
        (b"1,0x1,3", "undecodable", "'0x1' is not a number"),
        (b"[1,2],3,4", "wrong_length", "4 numbers, not 3"),
        (b"[1,2],3", "undecodable", "'[1' is not a number"),
        (b"1,2", "wrong_length", "2 numbers, not 3"),
        (b"", "wrong_length", "0 numbers, not 3"),
        (b"1,2,\xff", "undecodable", "is not a number"),
    ],
)
def test_lines_without_a_vector_are_rejected(line: bytes, reason: str, words: str) -> None:
    assert_rejected(codec("csv").decode([line]), reason, words)
