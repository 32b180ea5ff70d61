"""Tensors with a shape, and sparse vectors: what lies beside an array says how it is read."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.formats.schemas import WriterSchema
from tests.formats.structured import assert_rejected, avro, codec, memory

lengths = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def decoded(record: Any, field: str, d: int, **judging: Any) -> Any:
    return codec("json", field, d=d, **judging).decode([json.dumps(record).encode()])


@given(lengths, st.sampled_from(["data", "values"]), st.booleans())
def test_the_first_axis_counts_vectors_as_in_numpy(shape: list[int], name: str, nested: bool) -> None:
    numbers = np.arange(np.prod(shape)) + 0.5
    rows = numbers.reshape(shape[0], -1) if len(shape) > 1 else numbers.reshape(1, -1)
    array = (numbers.reshape(shape) if nested else numbers).tolist()
    found = decoded({"x": [{"shape": shape, name: array}]}, f"x.{name}", rows.shape[1])
    assert found.vectors.tolist() == rows.tolist(), found.rejects


@given(lengths, st.integers(1, 60))
def test_a_tensor_is_never_cut_into_vectors_of_another_length(shape: list[int], d: int) -> None:
    width = np.prod(shape[1:] if len(shape) > 1 else shape)
    found = decoded({"shape": shape, "data": np.ones(np.prod(shape)).tolist()}, "data", d)
    assert len(found.rejects) == (width != d)


@pytest.mark.parametrize("shape", [[4], [2, 3], [0, 3], [3, 1], [10**18] * 32])
def test_a_shape_of_other_numbers_is_rejected(shape: list[int]) -> None:
    assert_rejected(decoded({"shape": shape, "data": [1, 2, 3]}, "data", 3), "wrong_length", "")


@pytest.mark.parametrize("shape", ["round", None, [], [1.5], [True, 3], {"a": 1}, 3, ["3"], [-3], [1] * 33])
def test_any_other_shape_is_another_field(shape: Any) -> None:
    assert decoded({"shape": shape, "data": [1, 2, 3]}, "data", 3).vectors.tolist() == [[1, 2, 3]]
    assert decoded({"shape": [3, 1], "v": [1, 2, 3]}, "v", 3).vectors.tolist() == [[1, 2, 3]]


def test_a_tensor_for_each_column_is_read_by_the_columns_names() -> None:
    inputs = [{"name": name, "shape": [2, 1], "data": [i, i + 10]} for i, name in enumerate("cab")]
    field = "x[name=a].data,x[name=b].data,x[name=c].data"
    assert decoded({"x": inputs}, field, 3).vectors.tolist() == [[1, 2, 0], [11, 12, 10]]
    assert len(decoded({"x": inputs}, "x.data", 3).rejects) == 1


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [1.0]])
@pytest.mark.parametrize("field", ["values", "v.values"])
def test_sparse_vectors_are_refused_as_sparse_and_dense_ones_are_read(values: list[float], field: str) -> None:
    def around(record: Any) -> Any:
        return {"v": record} if field == "v.values" else record

    sparse = around({"indices": list(range(len(values))), "values": values})
    assert_rejected(decoded(sparse, field, 3), "undecodable", "sparse")
    dense = around({"indices": None, "values": [1, 2, 3]})
    assert decoded(dense, field, 3).vectors.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("name", ["indices", "shape"])
def test_avro_reads_them_by_the_same_rules(name: str) -> None:
    kinds = {name: ["null", {"type": "array", "items": "int"}], "values": {"type": "array", "items": "double"}}
    fields = [{"name": each, "type": kind} for each, kind in kinds.items()]
    schema = WriterSchema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))
    decoder = codec("avro", "values", memory(schema), 2)
    values = [avro(schema, {name: beside, "values": [1.0, 2.0]}) for beside in (None, [2, 1])]
    found = decoder.decode(values)
    assert found.vectors.tolist() == [[1, 2]]
    assert ("sparse" if name == "indices" else "not") in found.rejects[0].message
