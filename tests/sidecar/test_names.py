"""Vectors as records of named dimensions, which answer as arrays do; and names wherever a dimension is an index."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings, strategies as st

from streampca.sidecar import schemas
from streampca.sidecar.recent_vectors import RecentVectors
from tests.example_models import D, numbered
from tests.sidecar.http_client import Client, create_client, read_error

NAMES = ["temp", "hum", "a.b", "flow rate", "Δp"]
VECTORS = np.random.default_rng(1).standard_normal((4, D)) * 3
RECORDS = [dict(zip(NAMES, row, strict=True)) for row in VECTORS.tolist()]
SHUFFLED = [{"id": "x", **dict(reversed(record.items())), "more": {"a": [True]}} for record in RECORDS]
CAN_FILL = {"components": 2, "missing": "impute"}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Versions 10, without names, 20, with names, and 30, which also fills gaps."""
    with_names = [replace(numbered(20), names=NAMES), replace(numbered(30), names=NAMES, settings=CAN_FILL)]
    with create_client(numbered(10), *with_names) as client:
        yield client


def answer(client: Client, path: str, **content: Any) -> Any:
    sent = client.post(path, content=orjson.dumps({"version": 20} | content))
    assert sent.status_code == 200, sent.text
    return sent.json()


@pytest.mark.parametrize("records", [RECORDS, SHUFFLED, []], ids=["in order", "with others, in another order", "none"])
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/project", {"basis": "whitened", "fields": ["t2"]}), ("/v1/score", {"contributions": 2}),
        ("/v1/reconstruct", {}),
    ],
)  # fmt: skip
def test_records_are_answered_as_vectors_are(client: Client, path: str, more: Any, records: Any) -> None:
    vectors = VECTORS[: len(records)].tolist()
    assert answer(client, path, records=records, **more) == answer(client, path, vectors=vectors, **more)


def test_booleans_are_1_and_0(client: Client) -> None:
    rows = [[True, 2, False, *VECTORS[0, 3:].tolist()]]
    numbers = [[1, 2, 0, *VECTORS[0, 3:].tolist()]]
    expected = answer(client, "/v1/project", vectors=numbers)
    assert answer(client, "/v1/project", vectors=rows) == expected
    assert answer(client, "/v1/project", records=[dict(zip(NAMES, rows[0], strict=True))]) == expected


def test_null_is_a_missing_entry_where_the_model_fills_missing_entries(client: Client) -> None:
    gap, row = {**RECORDS[0], "hum": None}, [VECTORS[0, 0].item(), None, *VECTORS[0, 2:].tolist()]
    filled = answer(client, "/v1/project", version=30, vectors=[row])
    assert answer(client, "/v1/project", version=30, records=[gap]) == filled
    refused = client.post("/v1/project", json={"version": 20, "records": [RECORDS[1], gap]})
    assert "records[1]['hum'] must be a finite number, not null" in read_error(refused, 422)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"flow rate": "x"}, "a string"), ({"flow rate": {}}, "an object"),
        ({"flow rate": [1.0, 2.0]}, "records[1]"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_a_number_is_refused(client: Client, wrong: Any, text: str) -> None:
    refused = client.post("/v1/score", json={"version": 20, "records": [RECORDS[0], RECORDS[1] | wrong]})
    assert "records[1]" in (error := read_error(refused, 422))
    assert text in error


@pytest.mark.parametrize("endpoint", ["project", "score", "reconstruct"])
def test_a_result_that_is_too_large_is_of_the_records(client: Client, endpoint: str) -> None:
    huge = dict.fromkeys(NAMES, 1e300)
    refused = client.post(f"/v1/{endpoint}", json={"version": 20, "records": [RECORDS[0], huge]})
    assert read_error(refused, 422).startswith("records[1] holds values too large")


def test_an_absent_name_is_a_missing_entry_where_the_model_fills_missing_entries(client: Client) -> None:
    null = {name: None if name == NAMES[1] else 1.5 for name in NAMES}
    absent = {name: value for name, value in null.items() if value is not None} | {"other": "x"}
    answers = [client.post("/v1/score", json={"version": 30, "records": [record]}) for record in (null, absent)]
    assert answers[0].json() == answers[1].json()
    assert answers[1].status_code == 200
    error = read_error(client.post("/v1/score", json={"version": 30, "records": [absent, {"other": 1}]}), 422)
    assert error == f"records[1] has no {NAMES[0]!r}: there is 'other'"


def test_a_name_that_is_missing_is_named(client: Client) -> None:
    for record in ({}, {name: 1 for name in NAMES if name != "a.b"}, {"a": {"b": 1}, "temp": 1, "hum": 1}):
        error = read_error(client.post("/v1/project", json={"version": 20, "records": [RECORDS[0], record]}), 422)
        missing = next(name for name in NAMES if name not in record)
        assert error.startswith(f"records[1] has no {missing!r}: there is ")


def test_too_many_records_are_refused(client: Client) -> None:
    refused = client.post("/v1/project", content=orjson.dumps({"version": 20, "records": RECORDS[:1] * 10_001}))
    assert read_error(refused, 413) == "records has 10001 rows, at most 10000 are allowed: send fewer"


def test_a_model_tells_its_names_and_so_do_contributions(client: Client) -> None:
    for path in ("/v1/model", "/v1/model/components"):
        assert [client.get(f"{path}?version={version}").json()["names"] for version in (10, 20)] == [None, NAMES]
    scores = answer(client, "/v1/score", records=RECORDS, contributions=3)
    schemas.ScoreResponse.model_validate(scores, strict=True)
    for part in ("t2", "spe"):
        assert scores[f"{part}_names"] == [[NAMES[j] for j in row] for row in scores[f"{part}_dimensions"]]
    assert "t2_names" not in answer(client, "/v1/score", version=10, vectors=VECTORS.tolist(), contributions=3)
    body = orjson.dumps({"version": 20, "records": RECORDS, "contributions": 1})
    binary = client.post("/v1/score", content=body, headers={"Accept": "application/x-npz"})
    assert binary.status_code == 200


LABELLED = [{**record, "pump": label} for record, label in zip(RECORDS, ["p-1", "p-2", 65 * "x", None], strict=True)]


@pytest.fixture(scope="module")
def labelling() -> Iterator[Client]:
    with create_client(replace(numbered(20), names=NAMES), label="pump") as client:
        yield client


def test_records_with_contributions_are_answered_with_their_labels(labelling: Client) -> None:
    scored = answer(labelling, "/v1/score", records=LABELLED, contributions=1)
    schemas.ScoreResponse.model_validate(scored)
    assert scored["labels"] == ["p-1", "p-2", 64 * "x", ""]
    assert answer(labelling, "/v1/score", records=[], contributions=1)["labels"] == []
    assert "labels" not in answer(labelling, "/v1/score", records=LABELLED)
    assert "labels" not in answer(labelling, "/v1/score", vectors=VECTORS.tolist(), contributions=1)
    assert "labels" not in answer(labelling, "/v1/project", records=LABELLED)


def test_without_the_setting_there_are_no_labels(client: Client) -> None:
    assert "labels" not in answer(client, "/v1/score", records=LABELLED, contributions=1)


def test_the_most_unusual_vectors_have_the_labels_of_their_records(labelling: Client) -> None:
    with create_client(replace(numbered(20), names=NAMES), label="pump") as client:
        answer(client, "/v1/project", records=LABELLED[:2])
        answer(client, "/v1/project", vectors=VECTORS[2:].tolist())
        worst = client.get("/v1/page/recent").json()["worst"]
    scores = answer(labelling, "/v1/score", vectors=VECTORS.tolist())["score"]
    expected = ["p-1", "p-2", "", ""]
    assert [each["label"] for each in worst] == [expected[i] for i in np.argsort(-np.array(scores))]


def test_the_labels_of_the_newest_of_many_vectors_are_kept() -> None:
    recent = RecentVectors()
    recent.add(np.zeros((1, D)), ["first"])
    recent.add(np.zeros((600, D)), [str(i) for i in range(600)])
    snapshot = recent._snapshot(D)
    assert len(snapshot.vectors) == len(snapshot.labels) == len(snapshot.times_s) == 500
    assert snapshot.labels.tolist() == [str(i) for i in range(100, 600)]


def test_long_names_count_towards_the_size_of_an_answer() -> None:
    long = replace(numbered(20), names=[f"{i}".rjust(255, "x") for i in range(D)])
    vectors = [[1.0] * D] * 50
    with create_client(long, max_body_bytes=20_000) as client:
        refused = client.post("/v1/score", json={"vectors": vectors, "contributions": D})
        assert "ask for at most 2 contributions" in read_error(refused, 413)


# --- MLflow ---------------------------------------------------------------------------------------------------------


def predictions(client: Client, **content: Any) -> Any:
    return answer(client, "/invocations", **content)["predictions"]


def test_mlflow_takes_records_and_a_table_by_its_columns(client: Client) -> None:
    shuffled, of_20 = [3, 0, 4, 2, 1], {"params": {"version": 20}}
    by_position = predictions(client, instances=VECTORS.tolist(), **of_20)
    table = {"columns": [NAMES[j] for j in shuffled], "index": [0, 1, 2, 3], "data": VECTORS[:, shuffled].tolist()}
    for content in (
        {"dataframe_records": SHUFFLED}, {"instances": RECORDS}, {"dataframe_split": table},
        {"dataframe_split": {"data": VECTORS.tolist()}},
        {"dataframe_split": {"columns": [*range(D)], "data": VECTORS.tolist()}},
    ):  # fmt: skip
        assert predictions(client, **content, **of_20) == by_position
    assert predictions(client, dataframe_records=[], **of_20) == []


def test_mlflow_takes_a_table_by_position_if_the_model_has_no_names(client: Client) -> None:
    table, of_10 = {"columns": ["x", "y", "z", "u", "v"], "data": VECTORS.tolist()}, {"params": {"version": 10}}
    assert predictions(client, dataframe_split=table, **of_10) == predictions(client, inputs=VECTORS.tolist(), **of_10)
    refused = client.post("/invocations", json={"dataframe_records": RECORDS, **of_10})
    assert "send arrays" in read_error(refused, 422)


@pytest.mark.parametrize("columns", [["x", *NAMES[1:]], NAMES[:4], [*NAMES, "x"], [*NAMES[:4], NAMES[0]], ["x"] * D])
def test_mlflows_columns_of_other_names_are_refused_with_both_lists(client: Client, columns: list[str]) -> None:
    table = {"columns": columns, "data": np.ones((2, len(columns))).tolist()}
    refused = client.post("/invocations", json={"dataframe_split": table, "params": {"version": 20}})
    both = f"the columns are {', '.join(columns)}, and the model's dimensions {', '.join(NAMES)}: "
    assert read_error(refused, 422).startswith(both)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda names: [*names[:-1], "x"], "n39 is missing"),
        (lambda names: names[:-1], "n39 is missing"),
        (lambda names: [*names, "x"], "x is one too many"),
        (lambda names: [*names, names[3]], "n3 is one too many"),
    ],
)
def test_mlflows_columns_that_differ_behind_the_listed_names_are_told(
    change: Callable[[list[str]], list[str]], difference: str
) -> None:
    names = [f"n{i}" for i in range(40)]
    with create_client(replace(numbered(20, d=40), names=names)) as client:
        columns = change(names)
        table = {"columns": columns, "data": np.ones((2, len(columns))).tolist()}
        assert read_error(client.post("/invocations", json={"dataframe_split": table}), 422).endswith(difference)


def _base64_of(dtype: str) -> Callable[[Any], list[str]]:
    return lambda rows: [base64.b64encode(row.astype(dtype).tobytes()).decode() for row in rows]


WAYS_TO_WRITE_ROWS = {
    "arrays": lambda rows: rows.tolist(),
    "texts of arrays": lambda rows: [str(row) for row in rows.tolist()],
    "float64": _base64_of("<f8"),
    "float32": _base64_of("<f4"),
}


@pytest.mark.parametrize("way", WAYS_TO_WRITE_ROWS)
@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 2, 1]])
def test_mlflows_table_with_names_takes_the_rows_that_instances_take(
    client: Client, way: str, n: int, order: list[int]
) -> None:
    write, of_20 = WAYS_TO_WRITE_ROWS[way], {"params": {"version": 20}}
    table = {"columns": [NAMES[j] for j in order], "data": write(VECTORS[:n, order])}
    by_position = predictions(client, instances=write(VECTORS[:n]), **of_20)
    assert predictions(client, dataframe_split=table, **of_20) == by_position
    assert len(by_position) == n


@pytest.mark.parametrize("width", [0, 1, D - 1, D + 1])
def test_rows_of_another_width_than_mlflows_columns_are_counted(client: Client, width: int) -> None:
    for rows, words in (
        (np.ones((2, width)).tolist(), f"each row of data has {width} values, but columns has {D} names"),
        (_base64_of("<f8")(np.ones((2, width))), f"{8 * width} bytes" if width else f"{width} values"),
    ):
        content = {"dataframe_split": {"columns": NAMES, "data": rows}, "params": {"version": 20}}
        assert words in read_error(client.post("/invocations", json=content), 422)


ROWS_OF_ANY_KIND = st.lists(
    st.lists(st.none() | st.floats(-9, 9), max_size=D + 1)
    | st.just([1.5] * D)
    | st.sampled_from([1, None, {}, RECORDS[0], "", "x", "[1,2]", str([2.5] * D)])
    | st.integers(0, 2 * D + 1).map(lambda count: base64.b64encode(bytes(4 * count)).decode()),
    max_size=3,
)
COLUMNS = st.none() | st.permutations(NAMES) | st.lists(st.sampled_from([*NAMES, 0, None, "x"]), max_size=D + 1)


@settings(deadline=None)
@given(rows=ROWS_OF_ANY_KIND, columns=COLUMNS, version=st.sampled_from([10, 20, 30]))
def test_any_table_of_mlflow_is_answered_or_refused(client: Client, rows: Any, columns: Any, version: int) -> None:
    table = {"data": rows} if columns is None else {"columns": columns, "data": rows}
    content = {"dataframe_split": table, "params": {"version": version}}
    answer = client.post("/invocations", content=orjson.dumps(content))
    if answer.status_code == 200:
        assert len(answer.json()["predictions"]) == len(rows)
    else:
        read_error(answer, 422)


@pytest.mark.parametrize("option", ["version=10", "basis=whitened", "fields=t2"])
def test_mlflows_options_are_refused_in_the_query(client: Client, option: str) -> None:
    refused = client.post(f"/invocations?{option}", json={"instances": VECTORS.tolist()})
    name, _, _ = option.partition("=")
    assert read_error(refused, 422) == f"{name} is not read from the query: write it into params"
    assert client.post("/invocations?trace=1", json={"instances": VECTORS.tolist()}).status_code == 200
