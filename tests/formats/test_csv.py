"""Lines of CSV: separators, and what a cell may be, as in files."""

import numpy as np
import pytest

from tests.formats.structured import assert_rejected, codec


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
    ("line", "reason", "words"),
    [
        (b"1,,3", "not_finite", "missing=impute"),
        (b"1,nA,3", "not_finite", "missing=impute"),
        (b"1,x,3", "undecodable", "'x' is no number"),
        (b"1_0,2,3", "undecodable", "'1_0' is no number"),
        (b'1,2,"3"', "undecodable", "'\"3\"' is no number"),
        (b"1,5;2;3", "undecodable", "'1,5' is no number"),
        (b"1;[2];3", "undecodable", "'[2]' is no number"),
        (b"1;{};3", "undecodable", "'{}' is no number"),
        (b"1,0x1,3", "undecodable", "'0x1' is no number"),
        (b"[1,2],3,4", "wrong_length", "4 numbers, not 3"),
        (b"[1,2],3", "undecodable", "'[1' is no number"),
        (b"1,2", "wrong_length", "2 numbers, not 3"),
        (b"", "wrong_length", "0 numbers, not 3"),
        (b"\xff", "undecodable", "not text in UTF-8"),
    ],
)
def test_lines_without_a_vector_are_rejected(line: bytes, reason: str, words: str) -> None:
    assert_rejected(codec("csv").decode([line]), reason, words)
