"""Lines of CSV: separators, and what a cell may be, as in files."""

import math

import pytest

from tests.formats.structured import assert_rejected, codec


@pytest.mark.parametrize(
    "line", ["1,2.5,1e3", "1;2.5;1e3\r\n", "\ufeff1\t2.5\t1E3", "true  2.5 +1000.", " TRUE , 2.5 ,1000"]
)
def test_numbers_are_read(line: str) -> None:
    assert codec("csv").decode([line.encode()]).vectors.tolist() == [[1, 2.5, 1000]]


@pytest.mark.parametrize("cell", ["", "NA", "na", "NaN", "Null"])
def test_a_cell_may_be_missing(cell: str) -> None:
    line = f"1,{cell},3".encode()
    assert_rejected(codec("csv").decode([line]), "not_finite", "missing=impute")
    [[first, missing, last]] = codec("csv", min_observed=1).decode([line]).vectors.tolist()
    assert (first, math.isnan(missing), last) == (1, True, 3)


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        (b"1,x,3", "undecodable", "'x' is no number"),
        (b"1_0,2,3", "undecodable", "'1_0' is no number"),
        (b'1,2,"3"', "undecodable", "'\"3\"' is no number"),
        (b"[1,2],3,4", "wrong_length", "4 numbers, not 3"),
        (b"[1,2],3", "undecodable", "'[1' is no number"),
        (b"1,2", "wrong_length", "2 numbers, not 3"),
        (b"", "wrong_length", "0 numbers, not 3"),
        (b"\xff", "undecodable", "not text in UTF-8"),
    ],
)
def test_other_lines_are_rejected(line: bytes, reason: str, words: str) -> None:
    assert_rejected(codec("csv").decode([line]), reason, words)
