"""Model files: every value survives a round trip, and any damage is detected."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.errors import DamagedFileError
from streampca.fold import model_file, npz
from streampca.pca.model import Model
from streampca.pca.past_scores import PastScores
from streampca.pca.projection import Scores
from tests.docs_tables import DOCS
from tests.errors import refusal
from tests.example_models import stats_of
from tests.pca.streams import values_in


def a_model(d: int = 6, k: int = 2, dtype: Any = np.float64, seed: int = 0) -> Model:
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(d, k)))[0].T
    variances = np.sort(rng.uniform(0.5, 2, size=k))[::-1]
    return Model(
        np.ascontiguousarray(axes, dtype), variances.astype(dtype), rng.normal(size=d).astype(dtype), 1.0 + 2 * k, 17.5
    )


def some_past_scores() -> PastScores:
    values = np.array([0.0, 1.0, 1.0, 5.0, np.inf])
    return PastScores.empty().with_scores(Scores(values, 2 * values, 3 * values))


def a_published(version: int = 42, **more: Any) -> model_file.PublishedModel:
    return model_file.PublishedModel(
        version=version, model=a_model(), topic="readings", topic_id="AbC", positions={0: 10, 3: 32, 11: 0},
        published_at=1.5,
        stats=stats_of(
            rejected=2, loss=0.5, loss_ratio=0.1, loss_ewma=0.09, first_timestamp_ms=1, last_timestamp_ms=99
        ),
        settings={"components": 2, "half_life_messages": None}, partition_losses={0: 0.5, 3: 0.0}, **more,
    )  # fmt: skip


@given(
    version=st.integers(0, 2**63 - 1),
    k=st.integers(1, 4),
    more=st.integers(0, 3),
    dtype=st.sampled_from([np.float32, np.float64]),
    positions=st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=4),
    loss=st.none() | st.floats(0, 1e300),
)
def test_decoding_returns_what_was_encoded(
    version: int, k: int, more: int, dtype: Any, positions: dict[int, int], loss: float | None
) -> None:
    model = model_file.PublishedModel(
        version, a_model(k + more, k, dtype), stats_of(loss=loss), "t", positions=positions
    )
    assert values_in(model_file.decode(model_file.encode(model))) == values_in(model)
    assert model_file.encode(model_file.decode(model_file.encode(model))) == model_file.encode(model)


def test_the_order_of_positions_does_not_change_the_bytes() -> None:
    model = a_published()
    names = ("positions", "partition_losses")
    reordered = dataclasses.replace(model, **{name: dict(reversed(getattr(model, name).items())) for name in names})
    assert model_file.encode(reordered) == model_file.encode(model)


@pytest.mark.parametrize("scale", [None, np.arange(1, 7.0)])
def test_optional_parts_of_a_model_survive_a_round_trip(scale: Any) -> None:
    covariance = np.ones(21, np.float32)
    model = a_published(
        subspace_error=0.125, axis_errors=[0.1, np.pi / 2], past_scores=some_past_scores(),
        covariance_or_axes=covariance, names=list("abcdef"),
    )  # fmt: skip
    seen, known = np.arange(6) > 1, np.minimum.outer(np.arange(6) / 5, np.arange(6) / 5)[np.tril_indices(6)]
    model = dataclasses.replace(model, model=dataclasses.replace(model.model, scale=scale, seen=seen), known=known)
    assert values_in(model_file.decode(model_file.encode(model))) == values_in(model)


def test_the_documentation_names_the_fields_and_arrays_of_a_model_file() -> None:
    published = a_published(
        past_scores=some_past_scores(), covariance_or_axes=np.ones(21, np.float32), known=np.ones(21),
        names=list("abcdef"), checkpoint=b"checkpoint", estimator={},
    )  # fmt: skip
    model = dataclasses.replace(published.model, scale=np.ones(6), seen=np.full(6, True))
    data = model_file.encode(dataclasses.replace(published, model=model))
    header, arrays = npz.decode(data, model_file.KIND, model_file.FORMAT_VERSION)
    section = (DOCS / "checkpoint-format.md").read_text().split("\n## Model ")[1]
    named = [re.findall(r"`(\w+)`", cell) for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)]
    in_tables = sorted(name for cell in named for name in cell)
    assert in_tables == sorted([*(header.keys() - {"kind", "format_version"}), *arrays])


FLAWS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "not finite": lambda header, arrays: arrays["components"].__setitem__((0, 0), np.nan),
    "mean holds": lambda header, arrays: arrays["mean"].__setitem__(0, np.inf),
    "explained_variance holds": lambda header, arrays: arrays.update(explained_variance=np.array(["a", "b"])),
    "weight in its header is wrong": lambda header, arrays: header.update(weight="inf"),
    "do not fit": lambda header, arrays: arrays.update(mean=np.zeros(5)),
    "do not fit each": lambda header, arrays: arrays.update(components=np.zeros(3)),
    "do not fit each other": lambda header, arrays: arrays.update(components=np.zeros((0, 6))),
    "not orthonormal": lambda header, arrays: arrays.update(components=arrays["components"] * 1e200),
    "negative": lambda header, arrays: arrays.update(explained_variance=-arrays["explained_variance"]),
    "its arrays are components, explained_variance": lambda header, arrays: arrays.pop("mean"),
    "version in its header is wrong: Field required": lambda header, arrays: header.pop("version"),
    "partition_losses in its header is wrong: Field": lambda header, arrays: header.pop("partition_losses"),
    "total_variance in its header is wrong": lambda header, arrays: header.update(total_variance=None),
    "positions in its header is wrong": lambda header, arrays: header.update(positions=[1]),
    "positions.x.[key] in its header is wrong": lambda header, arrays: header.update(positions={"x": 1}),
    "the error of the subspace or of the axes, but not both": lambda header, arrays: header.update(subspace_error=0.1),
    "the errors of 1 axes instead of 2": lambda header, arrays: header.update(subspace_error=0.1, axis_errors=[0.1]),
    "axis_errors.1 in its header is wrong": lambda header, arrays: header.update(axis_errors=[0.1, -0.1]),
    "partition_losses.0 in its header is wrong": lambda header, arrays: header.update(partition_losses={"0": -1.0}),
    "version in its header is wrong: Input": lambda header, arrays: header.update(version="3"),
    "version in its header is wrong: Input should be greater": lambda header, arrays: header.update(version=-1),
    "not a model file: version in its header is wrong: Input": lambda header, arrays: header.update(version=True),
    "the scale is not one positive": lambda header, arrays: arrays.update(scale=np.arange(6.0)),
    "the scale is not one positive number": lambda header, arrays: arrays.update(scale=np.ones(5)),
    "the scale is not one positive number for": lambda header, arrays: arrays.update(scale=np.full(6, np.inf)),
    "the names of the dimensions": lambda header, arrays: header.update(names=list("abcde")),
    "the names of the dimensions are not": lambda header, arrays: header.update(names=list("abcdea")),
    "the names of the dimensions are not 6": lambda header, arrays: header.update(names=["", *"abcde"]),
    "names.0 in its header is wrong": lambda header, arrays: header.update(names=list(range(6))),
    "one truth value": lambda header, arrays: arrays.update(seen=np.ones(6)),
    "one truth value for each": lambda header, arrays: arrays.update(seen=np.ones(5, bool)),
    "learning continues": lambda header, arrays: arrays.update(known=np.ones(21)),
    "learning continues (`learned`": lambda header, arrays: arrays.update(learned=np.ones(21, "f"), known=np.ones(6)),
    "learning continues (`learned`, `known`) do not": lambda header, arrays: arrays.update(
        learned=np.ones(21, "f"), known=np.full(21, 2.0)
    ),
    "the calibration of the scores is damaged": lambda header, arrays: arrays.update(calibration=np.ones((2, 3))),
}  # fmt: skip


@pytest.mark.parametrize("words", FLAWS)
def test_an_intact_but_inconsistent_file_is_refused_with_the_reason(words: str) -> None:
    published = a_published(past_scores=some_past_scores())
    header, arrays = npz.decode(model_file.encode(published), model_file.KIND, model_file.FORMAT_VERSION)
    FLAWS[words](header, arrays)
    assert words in refusal(DamagedFileError, model_file.decode, npz.encode(header, arrays))


def test_a_model_that_could_not_be_read_back_is_not_written() -> None:
    model = a_published()
    scaled = dataclasses.replace(model.model, components=model.model.components * 2)
    assert "cannot be written: the components are not orthonormal" in refusal(
        ValueError, model_file.encode, dataclasses.replace(model, model=scaled)
    )
    for version in (-1, True, 2**63):
        assert "is not a number of messages" in refusal(
            ValueError, model_file.encode, dataclasses.replace(model, version=version)
        )


def test_weight_and_variance_may_be_python_integers() -> None:
    model = a_published()
    plain = dataclasses.replace(model, model=dataclasses.replace(model.model, weight=17, total_variance=5))
    assert model_file.decode(model_file.encode(plain)).model.weight == 17.0
