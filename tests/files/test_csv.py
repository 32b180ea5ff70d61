"""The first line of a CSV file, what separates its cells, and what a cell may be."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.errors import InputError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.rows import Rows
from tests.errors import refusal


def write_and_open(folder: Path, text: str, options: FileOptions = FileOptions(), name: str = "v.csv") -> Rows:  # noqa: B008
    (folder / name).write_text(text, encoding="utf-8")
    return open_rows(folder / name, options._replace(impute=True))


def vectors_of(rows: Rows) -> list[list[float]]:
    return np.concatenate([chunk.vectors for chunk in rows.chunks()]).tolist()


@pytest.mark.parametrize(
    ("first", "second", "meaning"),
    [
        ("a,b", "1,2", "header"),
        ("t,400,500", "1,2,3", "header"),
        ("1.5,2", "1,2", "row"),
        ("true,2", "1,2", "row"),
        ("1,2,3", "3,1,2", "row"),  # not from 0, and fewer than four
        ("3,2,1", "1,2,3", "row"),
        ("1,2,3,4", "2,3,4,5", "row"),  # the next line rises as well
        ("4,3,2,1", "4,3,2,0", "row"),
        ("1,2,4,3", "4,3,2,1", "row"),
        ("0", "1", "unclear"),
        ("0,1,2", "5,6,7", "unclear"),
        ("0.0,1.0", "5,6", "unclear"),
        ("400,500,600,700", "1,2,3,0", "unclear"),
        ("400,500,600,700", "4,3,2,1", "unclear"),
        ("8.5,7.5,6.5,5.5", "1,2,3,4", "unclear"),
        ("400,500,600,700", "1,2,NA,4", "unclear"),
        ("400,500,600,700", "", "unclear"),
        ("1,NA", "1,2", "unclear"),
        ("NaN,2", "1,2", "unclear"),
    ],
)
def test_the_first_line_is_a_header_or_a_row_or_the_user_must_say(
    tmp_path: Path, first: str, second: str, meaning: str
) -> None:
    text, n = f"{first}\n{second}\n", len(first.split(","))
    if meaning == "unclear":
        message = refusal(InputError, write_and_open, tmp_path, text)
        assert f"say --header or --no-header. It is '{first.split(',')[0]}'" in message
    else:
        rows = write_and_open(tmp_path, text)
        assert f"the first line is {'the header' if meaning == 'header' else 'a row'}" in rows.notes
        assert (rows.names is not None) == (meaning == "header")
        assert len(vectors_of(rows)) == (1 if meaning == "header" else 2)
    forced = write_and_open(tmp_path, f"{first}\n{','.join('1' * n)}\n", FileOptions(header=True))
    assert (forced.names, vectors_of(forced)) == (first.split(","), [[1.0] * n])
    if "a" not in first and "t" not in first[:1]:
        bare = write_and_open(tmp_path, text, FileOptions(header=False))
        assert (bare.names, bare.dimensions) == (None, n)


def test_a_column_without_a_name_must_be_left_out(tmp_path: Path) -> None:
    for header in (",a,b", "Unnamed: 0,a,b", "a,,b"):
        with pytest.raises(InputError, match=r"a column has no name.* --field"):
            write_and_open(tmp_path, f"{header}\n0,1,2\n")
    for field in ("a,b", "*", "[ab]"):
        rows = write_and_open(tmp_path, ",a,b\n0,1,2\n", FileOptions(field))
        assert (rows.names, vectors_of(rows)) == (["a", "b"], [[1, 2]])
    assert vectors_of(write_and_open(tmp_path, "5,6,7\n0,1,2\n", FileOptions("2,0", header=False))) == [[7, 5], [2, 0]]


@given(
    st.sampled_from([",", ";", "\t", "|"]),
    st.lists(st.lists(st.floats(allow_infinity=False, allow_nan=False), min_size=3, max_size=3), min_size=1),
)
def test_the_separator_is_found_out(
    tmp_path_factory: pytest.TempPathFactory, separator: str, Y: list[list[float]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "v.csv"
    with path.open("w", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator, quoting=csv.QUOTE_NONNUMERIC).writerows([["a, b", "c;\td", "e"], *Y])
    rows = open_rows(path, FileOptions(separator=separator if separator == "|" else None))
    assert rows.names == ["a, b", "c;\td", "e"]
    assert vectors_of(rows) == Y


def test_cells_hold_numbers_or_are_missing_and_others_are_refused(tmp_path: Path) -> None:
    rows = write_and_open(tmp_path, "a,b\n 1 ,NA\n,nan\nTrue,false\n1e3,null\n")
    np.testing.assert_array_equal(vectors_of(rows), [[1, math.nan], [math.nan] * 2, [1, 0], [1000, math.nan]])
    for cell in ("1_000", "1 2", "0x1", "x"):
        with pytest.raises(InputError, match=r"row 2: column 2 \(b\) is no number: .* \(cells are separated by ';'\)"):
            vectors_of(write_and_open(tmp_path, f"a;b\n1;2\n1;{cell}\n"))
    with pytest.raises(InputError, match=r"separated by ';'\): column a holds no numbers: name by --field .* a, b"):
        write_and_open(tmp_path, "a;b\n1,5;2,5\n3,5;4,5\n")
    for text, options, words in (
        ("a,b,a\n1,2,3\n", FileOptions("a"), "several columns a"),
        ("id,a,b\n7,1,2\n", FileOptions(dimensions=2), "vectors of 3 numbers, not of 2: name by --field"),
        ("m-1,1.5\nm-2,3\n", FileOptions(), "column m-1 holds no numbers: name by --field"),
        ("m-1,1.5\nm-2,3\n", FileOptions(), ", or say --no-header if the first line of CSV is a row"),
        ("m-1,1.5\nm-2,3\n", FileOptions(header=False), "column 0 holds no numbers: name by --field"),
    ):
        assert words in refusal(InputError, write_and_open, tmp_path, text, options)
