"""The first line of a CSV file, what separates its cells, and what a cell may be."""

import base64
import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from streampca.errors import InputError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.rows import Rows
from streampca.settings.field_paths import parse_conditions
from tests.errors import refusal
from tests.formats.structured import codec


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
        with pytest.raises(
            InputError, match=r"row 2: column 2 \(b\) is not a number: .* \(cells are separated by ';'\)"
        ):
            vectors_of(write_and_open(tmp_path, f"a;b\n1;2\n1;{cell}\n"))
    with pytest.raises(InputError, match=r"separated by ';'\): column a holds no numbers: say by --field .* a, b"):
        write_and_open(tmp_path, "a;b\n1,5;2,5\n3,5;4,5\n")
    for text, options, words in (
        ("a,b,a\n1,2,3\n", FileOptions("a"), "several columns a"),
        ("id,a,b\n7,1,2\n", FileOptions(dimensions=2), "vectors of 3 numbers, not of 2: say by --field"),
        ("m-1,1.5\nm-2,3\n", FileOptions(), "column m-1 holds no numbers: say by --field"),
        ("m-1,1.5\nm-2,3\n", FileOptions(), ", or say --no-header if the first line of CSV is a row"),
        ("m-1,1.5\nm-2,3\n", FileOptions(header=False), "column 0 holds no numbers: say by --field"),
    ):
        assert words in refusal(InputError, write_and_open, tmp_path, text, options)


X = np.arange(12.0).reshape(4, 3) + 0.25
SPELLINGS = {
    "JSON": lambda row: str(row.tolist()), "NumPy": lambda row: np.array2string(row, max_line_width=8),
    "Postgres": lambda row: "{" + ",".join(map(str, row.tolist())) + "}",
    "base64": lambda row: base64.b64encode(row.astype("<f4").tobytes()).decode(),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_column_may_hold_vectors_as_text(tmp_path: Path, spelling: str, separator: str) -> None:
    table = pd.DataFrame({"id": range(4), "text": ["a, b"] * 4, "v": [SPELLINGS[spelling](row) for row in X]})
    table.loc[4] = [9, "c", None]
    table = table.iloc[[4, 0, 1, 4, 2, 3]]  # the first row has no vector
    options = FileOptions("v", dimensions=3 if spelling == "base64" else None)
    rows = write_and_open(tmp_path, table.to_csv(index=False, sep=separator), options)
    assert (rows.dimensions, rows.names) == (3, None)
    chunks = list(rows.chunks(skip_nulls=True))
    assert np.concatenate([chunk.vectors for chunk in chunks]).tolist() == X.tolist()
    assert sum(chunk.skipped.total() for chunk in chunks) == 2


@pytest.mark.parametrize(
    ("cells", "needle"),
    [
        ('"[1, 2]"\nx\n', "row 2: expected an array of numbers, not a string"),
        ('"[1, 2]"\n"[1, 2, 3]"\n', "row 2: 3 numbers, not 2"),
        ('"[1. 2. ... 8. 9.]"\n', "expected an array of numbers, not a string"),
        ('"{1:0.5,3:2}/5"\n', "sparse"),
        ("AAAAAAAAAAAAAAAAAAAAAA==\n", "say --dimensions"),
    ],
)
def test_other_texts_in_a_column_are_refused(tmp_path: Path, cells: str, needle: str) -> None:
    message = refusal(InputError, lambda: vectors_of(write_and_open(tmp_path, f"v\n{cells}", FileOptions("v"))))
    assert needle in message


NUMBERS = st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=3, max_size=9)
HEADS = {
    "text before the header": ("Logger 7\nSite: B\n\nt,h,p\n", ["t", "h", "p"]),
    "comments": ("# Logger 7\n# Site, B\nt,h,p\n", ["t", "h", "p"]),
    "Excel": ("sep=,\nt,h,p\n", ["t", "h", "p"]),
    "units": ("t,h,p\n°C,%,hPa\n", None),
    "TOA5": ('"TOA5","6843","CR3000"\n"Ux","Uy","Uz"\n"m/s","m/s","m/s"\n"Smp","Smp","Smp"\n', None),
    "text before the rows": ("Logger 7\n", None),
    "forty lines": ("a line of text\n" * 40 + "t,h,p\n", ["t", "h", "p"]),
}


def follow(hint: str, options: FileOptions) -> FileOptions:
    """The options after a hint was followed."""
    skip = re.search(r"--skip-lines (\d+)", hint)
    encoding = re.search(r"--encoding,? (?:such as )?([a-z0-9-]+)", hint)
    header = False if skip and "--no-header" in hint[skip.end() :] else options.header
    lines_to_skip = int(skip[1]) if skip else options.skip_lines
    return options._replace(header=header, skip_lines=lines_to_skip, encoding=encoding[1] if encoding else None)


def read_error(folder: Path, text: str, options: FileOptions = FileOptions()) -> str:  # noqa: B008
    return refusal(InputError, lambda: list(write_and_open(folder, text, options).chunks()))


@pytest.mark.parametrize("kind", HEADS)
@given(numbers=NUMBERS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_before_the_rows_are_refused_with_a_hint_that_reads_the_rows(
    tmp_path: Path, kind: str, numbers: list[list[float]]
) -> None:
    head, names = HEADS[kind]
    text = head + "".join(",".join(map(repr, row)) + "\n" for row in numbers)
    hint = read_error(tmp_path, text)
    assert "--skip-lines" in hint
    rows = write_and_open(tmp_path, text, follow(hint, FileOptions()))
    assert vectors_of(rows) == numbers
    assert rows.names == (names or ["0", "1", "2"] if rows.names else None)


def test_a_hint_counts_the_lines_that_are_skipped_already(tmp_path: Path) -> None:
    text = "Logger 7\n\nSite B\nt,h\n1,2\n3,4\n"
    assert "--skip-lines 3" in read_error(tmp_path, text, FileOptions(skip_lines=2))
    assert vectors_of(write_and_open(tmp_path, text, FileOptions(skip_lines=3))) == [[1, 2], [3, 4]]
    assert "holds no" in read_error(tmp_path, text, FileOptions(skip_lines=99))


@pytest.mark.parametrize("text", ["t,h\n1,2\n3,x\n5,6\n", "t,h\nx,2\n3,4\n", "1,2\n3,x\n5,6\n", "t,h\n1,2\n3\n4,5\n"])
def test_a_wrong_row_is_not_called_a_line_before_the_rows(tmp_path: Path, text: str) -> None:
    assert "--skip-lines" not in read_error(tmp_path, text)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "latin-1", "windows-1252", "utf-8-sig"])
def test_any_encoding_is_read_by_its_mark_or_by_the_hint(tmp_path: Path, encoding: str) -> None:
    text = "température,Höhe\n" + "".join(f"{i},{i / 8}\n" for i in range(30_000))
    path = tmp_path / "v.csv"
    path.write_bytes(text.encode(encoding))
    options = FileOptions()
    if encoding not in ("utf-16", "utf-8-sig"):
        options = follow(refusal(InputError, open_rows, path), options)
        assert options.encoding is not None
    rows = open_rows(path, options)
    assert rows.names == ["température", "Höhe"]
    assert vectors_of(rows) == [[i, i / 8] for i in range(30_000)]


@pytest.mark.parametrize(
    ("field", "helps"), [("t,p", True), ("p,t", True), ("p,q", False), ("p", False), ("t,x*", False), ("p,t,x*", False)]
)
def test_imputing_is_proposed_for_a_missing_column_only_where_it_helps(tmp_path: Path, field: str, helps: bool) -> None:
    path = tmp_path / "v.csv"
    path.write_text("t,h\n1,2\n3,4\n", encoding="utf-8")
    error = refusal(InputError, open_rows, path, FileOptions(field))
    assert ("missing=impute" in error) == helps
    if helps:
        rows = open_rows(path, FileOptions(field, impute=True))
        assert rows.names == field.split(",")
        assert np.isnan(vectors_of(rows)).all(axis=0).tolist() == [name == "p" for name in rows.names]
    else:
        assert refusal(InputError, open_rows, path, FileOptions(field, impute=True)) == error


def test_text_with_the_mark_of_an_encoding_is_not_called_text_of_another(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_bytes("x,y\n1,2\n".encode("utf-16")[:-1])
    assert "not text in UTF-16: it was damaged or cut" in refusal(InputError, open_rows, path)
    path.write_bytes("x,y\n1,2\n".encode("utf-8-sig") + b"\xff")
    assert "not text in UTF-8: say its --encoding" in refusal(InputError, open_rows, path)


RECORD = {"x": 1.5, "y": -2, "v": [1.5, -2], "tags": [{"id": "h", "v": -2}, {"id": "t", "v": 1.5}]}


@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize("dimensions", [None, 2])
@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ("p.x,p.y", ["x", "y"]),
        ("p.v", None),
        ("p.tags[id=t].v,p.tags[id=h].v", ["t", "h"]),
        ("p.x,y", ["x", "y"]),
        ("q.in.x,q.in.y", ["x", "y"]),
    ],
)
def test_paths_lead_into_cells_that_hold_json(
    tmp_path: Path, paths: str, names: list[str] | None, dimensions: int | None, has_header: bool
) -> None:
    cells = ["a", json.dumps(RECORD), "-2", json.dumps({"in": json.dumps(RECORD)})]
    header = ["id", "p", "y", "q"]
    text = "".join(",".join(csv_cell(cell) for cell in row) + "\n" for row in ([header] * has_header + [cells, cells]))
    field = paths
    if not has_header:
        names = None
        for position, name in enumerate(header):
            field = re.sub(rf"(^|,){name}(?=[.,]|$)", rf"\g<1>{position}", field)
    options = FileOptions(field, header=has_header, dimensions=dimensions)
    rows = write_and_open(tmp_path, text, options)
    assert vectors_of(rows) == [[1.5, -2], [1.5, -2]]
    assert rows.names == names
    topics = codec("csv", re.sub(r"\bp\b", "1", re.sub(r"\bq\b", "3", re.sub(r"(^|,)y", r"\g<1>2", paths))), d=2)
    if has_header:
        line = text.splitlines()[1].encode()
        assert topics.decode([line, line]).vectors.tolist() == [[1.5, -2], [1.5, -2]]


def csv_cell(cell: str) -> str:
    quoted = cell.replace('"', '""')
    return f'"{quoted}"'


@pytest.mark.parametrize("cells", ["[1, 2, 3],[4, 5, 6]", "{1,2,3},{4,5,6}", "[1. 2. 3.],[4 5 6]"])
def test_texts_of_arrays_in_several_columns_are_columns_of_vectors(tmp_path: Path, cells: str) -> None:
    first, second = re.findall(r"[\[{].*?[\]}]", cells)
    line = f'a,"{first}","{second}"\n'
    text = f"id,x,y\n{line}{line}"
    assert "--dimensions" in refusal(InputError, write_and_open, tmp_path, text, FileOptions("x,y"))
    rows = write_and_open(tmp_path, text, FileOptions("x,y", dimensions=2))
    assert vectors_of(rows) == [[1, 4], [2, 5], [3, 6]] * 2
    assert codec("csv", "1,2", d=2).decode([line.encode()]).vectors.tolist() == [[1, 4], [2, 5], [3, 6]]


@pytest.mark.parametrize("missing", ["", "NA", "null"])
def test_a_cell_without_json_is_null_or_a_gap(tmp_path: Path, missing: str) -> None:
    whole, half = csv_cell(json.dumps({"x": 1, "y": 2})), csv_cell(json.dumps({"x": 3}))
    text = f"p,z\n{missing},4\n{whole},5\n{half},6\n"
    rows = write_and_open(tmp_path, text, FileOptions("p.x,p.y,z", impute=True))
    np.testing.assert_array_equal(vectors_of(rows), [[np.nan, np.nan, 4], [1, 2, 5], [3, np.nan, 6]])
    rows = write_and_open(tmp_path, text, FileOptions("p.x,p.y", impute=True))
    chunks = list(rows.chunks(skip_nulls=True))
    np.testing.assert_array_equal(np.concatenate([chunk.vectors for chunk in chunks]), [[1, 2], [3, np.nan]])
    assert sum(chunk.skipped["no_value"] for chunk in chunks) == 1
    strict = open_rows(tmp_path / "v.csv", FileOptions("p.x,p.y"))
    assert "row 3: no field 'p.y'" in refusal(InputError, lambda: list(strict.chunks(skip_nulls=True)))


ELEMENTS = json.dumps([{"id": "a", "t": "cpu", "x": 1, "y": 2}, {"id": "b", "t": "mem", "x": 3, "y": 4}])


@pytest.mark.parametrize(
    ("field", "where", "vectors"),
    [
        ("p.x,p.y", "", [[1, 2], [3, 4]]),
        ("p.x,p.y", "p.t=cpu", [[1, 2]]),
        ("p.x,p.y", "p.t=disk", []),
        ("p[id=a].x,p[id=b].x", "p.t=cpu", [[1, np.nan]]),
        ("p.x,p.y", "k=7", [[1, 2], [3, 4]]),
        ("p.x,p.y", "k=7.0", []),
        ("p.x,p.y", "q.s=ok,p.t!=cpu", [[3, 4]]),
        ("k,n", "p.t=cpu", [[7, 8]]),
        ("k,n", "k=7,q.s=ok", [[7, 8]]),
        ("k,n", "q.s!=ok", []),
    ],
)
def test_conditions_lead_into_cells_as_paths_do(
    tmp_path: Path, field: str, where: str, vectors: list[list[float]]
) -> None:
    """Where a condition is about elements that hold the numbers, it holds for each of them."""
    cells = [ELEMENTS, json.dumps({"s": "ok"}), "7", "8"]
    text = "p,q,k,n\n" + ",".join(map(csv_cell, cells)) + "\n"
    options = FileOptions(field, where=parse_conditions(where), dimensions=2)
    chunks = list(write_and_open(tmp_path, text, options).chunks())
    np.testing.assert_array_equal(np.concatenate([chunk.vectors for chunk in chunks]), np.reshape(vectors, (-1, 2)))
    assert sum(chunk.skipped["where"] for chunk in chunks) == (not vectors)
    positions = {name: str(index) for index, name in enumerate("pqkn")}
    field, where = (
        re.sub(r"(^|,)([pqkn])(?=\W)", lambda m: m[1] + positions[m[2]], f"{paths},")[:-1] for paths in (field, where)
    )
    decoded = codec("csv", field, d=2, where=where, min_observed=1).decode([text.splitlines()[1].encode()])
    assert decoded.rejects == []
    np.testing.assert_array_equal(decoded.vectors, np.reshape(vectors, (-1, 2)))


def test_a_line_of_another_kind_is_skipped_though_it_is_shorter() -> None:
    decoded = codec("csv", "1,2,3", where="0=cpu").decode([b"mem;1", b"cpu;1;2;3", b"cpu;1"])
    assert decoded.vectors.tolist() == [[1, 2, 3]]
    assert [skipped.index for skipped in decoded.skipped] == [0]
    assert [reject.index for reject in decoded.rejects] == [2]


def test_arrays_beside_a_column_say_how_it_is_read(tmp_path: Path) -> None:
    text = 'data,shape\n"[1, 2, 3, 4]","[2, 2]"\n"[5, 6]","[1, 2]"\n'
    assert vectors_of(write_and_open(tmp_path, text, FileOptions("data"))) == [[1, 2], [3, 4], [5, 6]]
    text = 'indices,values\n,"[1, 2]"\n"[0, 7]","[3, 4]"\n'
    sparse = write_and_open(tmp_path, text, FileOptions("values"))
    assert "row 2: a sparse vector" in refusal(InputError, lambda: list(sparse.chunks()))
