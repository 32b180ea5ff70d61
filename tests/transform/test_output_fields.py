"""The output of a record is what the model says, and depends on nothing but the record and the model."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings, strategies as st
from threadpoolctl import threadpool_limits

from streampca.formats import writer_of
from streampca.settings.commands import EMITTED
from streampca.transform.output_fields import OutputFields
from streampca.transform.record_packer import RecordPacker
from tests.example_models import numbered, standardised
from tests.transform.harness import make_model_with_past_scores, project_batches, project_single

ALL = OutputFields((*EMITTED, "contributions:3"))
model = partial(make_model_with_past_scores, 3)


@settings(max_examples=30)
@given(data=st.data())
def test_every_bit_is_the_same_however_records_are_batched(data: st.DataObject) -> None:
    d, k = data.draw(st.sampled_from([(1, 1), (5, 2), (64, 8), (200, 20)]))
    count = data.draw(st.integers(1, 120))
    gaps = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    offsets = np.cumsum(gaps) + data.draw(st.integers(0, 10**6))
    vectors = np.random.default_rng(count).normal(size=(count, d)) * 3
    if data.draw(st.booleans()):
        vectors[:, 1:][np.random.default_rng(count).random((count, d - 1)) < 0.2] = np.nan
    vectors = vectors.astype(data.draw(st.sampled_from([np.float32, np.float64])))
    published = model(d, k)
    cuts = sorted(data.draw(st.sets(st.integers(0, count), max_size=5)))
    encode = writer_of("json").write
    with threadpool_limits(1):
        whole = encode(project_single(ALL, published, vectors, offsets))
        parts = [
            value
            for i, j in zip([0, *cuts], [*cuts, count], strict=True)
            if i < j
            for value in encode(project_single(ALL, published, vectors[i:j], offsets[i:j]))
        ]
    assert parts == whole


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_the_fields_are_those_of_the_model(gaps: bool, scaled: bool) -> None:
    published, vectors = model(6, 2), np.random.default_rng(2).normal(size=(40, 6))
    published = standardised(published) if scaled else published
    if gaps:
        vectors[::3, 2] = np.nan
    fields = project_single(ALL, published, vectors, np.arange(100, 140))
    projected = published.project(vectors)
    reconstruction = published.model.reconstruct(projected.coordinates)
    which, contributions = projected.contributions(3)
    expected = [projected.coordinates, projected.residual, projected.scores.score, projected.p, reconstruction]
    expected += [which[0], contributions.t2, which[1], contributions.spe]
    assert list(fields) == list(ALL.kinds)
    for values, exact in zip(fields.values(), expected, strict=True):
        np.testing.assert_allclose(values, exact, rtol=1e-9, atol=1e-12)


def test_whitened_coordinates_change_neither_score_nor_reconstruction() -> None:
    published, vectors = model(6, 2), np.random.default_rng(2).normal(size=(4, 6))
    principal, whitened = (
        project_single(OutputFields(EMITTED, basis), published, vectors, np.arange(4)) for basis in BASES
    )
    np.testing.assert_allclose(whitened["coordinates"], published.model.whiten(principal["coordinates"]))
    for name in EMITTED[1:]:
        np.testing.assert_array_equal(whitened[name], principal[name])


BASES: tuple[Any, Any] = ("principal", "whitened")


@settings(max_examples=30)
@given(counts=st.lists(st.integers(1, 70), min_size=1, max_size=6))
def test_records_of_several_vectors_give_what_they_give_alone(counts: list[int]) -> None:
    published, vectors = model(5, 2), np.random.default_rng(3).normal(size=(sum(counts), 5))
    encode = writer_of("json").write
    together = encode(project_batches(ALL, published, vectors, np.array(counts)), np.array(counts))
    starts = np.cumsum([0, *counts])
    for i, count in enumerate(counts):
        own = np.array([count])
        alone = encode(project_batches(ALL, published, vectors[starts[i] : starts[i + 1]], own), own)
        assert [together[i]] == alone
        assert len(orjson.loads(together[i])["coordinates"]) == count


@settings(max_examples=30)
@given(counts=st.lists(st.integers(1, 3), min_size=1, max_size=80), start=st.integers(0, 200))
def test_records_of_one_vector_and_of_several_give_what_they_give_apart(counts: list[int], start: int) -> None:
    published, vectors = model(5, 2), np.random.default_rng(3).normal(size=(sum(counts), 5))
    of_records, offsets = np.array(counts), start + np.arange(len(counts))
    fields = ALL.project(published, vectors, offsets, of_records, of_records > 1)
    together = RecordPacker(writer_of("json"), always_lists=False).write_values(fields, of_records)
    starts = np.cumsum([0, *counts])
    for i, (value, count) in enumerate(zip(together, counts, strict=True)):
        own = vectors[starts[i] : starts[i + 1]]
        if count > 1:
            expected = writer_of("json").write(
                project_batches(ALL, published, own, of_records[i : i + 1]), of_records[i : i + 1]
            )
        else:
            expected = writer_of("json").write(project_single(ALL, published, own, offsets[i : i + 1]))
        assert [value] == expected


def test_p_is_unknown_without_past_scores() -> None:
    fields = project_single(OutputFields(("p",)), numbered(3), np.zeros((1, 5)), np.arange(1))
    assert writer_of("json").write(fields) == [b'{"p":null}']
    assert np.isnan(np.frombuffer(writer_of("float32").write(fields)[0], "<f4")).all()


def test_contributions_have_the_names_of_dimensions() -> None:
    names = ["temp", "hum", "press", "wind", "ünder"]
    published = replace(model(5, 2), names=names)
    fields = OutputFields(("contributions:9",), with_names=True)
    computed = project_single(fields, published, np.random.default_rng(1).normal(size=(3, 5)), np.arange(3))
    assert (
        list(computed)
        == list(fields.kinds)
        == [f"{kind}_{what}" for kind in ("t2", "spe") for what in ("dimensions", "contributions", "names")]
    )
    for kind in ("t2", "spe"):
        assert [[names[j] for j in row] for row in computed[f"{kind}_dimensions"]] == computed[f"{kind}_names"].tolist()
        assert computed[f"{kind}_names"].shape == (3, 5)
    (nameless,) = project_single(fields, model(5, 2), np.ones((1, 5)), np.arange(1))["t2_names"]
    assert sorted(nameless) == [*"01234"]  # of a model that has lost its names: the schema stays


@pytest.mark.parametrize("fields", [("residual",), ("score", "residual")])
def test_only_what_was_asked_for_is_written_in_that_order(fields: tuple[str, ...]) -> None:
    (value,) = writer_of("json").write(
        project_single(OutputFields(fields), model(5, 2), np.zeros((1, 5)), np.arange(1))
    )
    assert list(orjson.loads(value)) == list(fields)
