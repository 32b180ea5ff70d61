"""Which model is used: the newest, or one version, of a shape that does not change."""

from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from streampca.errors import InputError, SettingsError
from streampca.fold.model_file import PublishedModel
from streampca.pca.projection import Scores
from streampca.stores.memory import MemoryStore
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from streampca.transform.models import CurrentModel
from tests.errors import refusal
from tests.example_models import TOPIC, numbered, with_past_scores


@pytest.fixture
def models() -> Models:
    return Models(MemoryStore(), TOPIC)


@pytest.fixture
def cache(models: Models) -> ModelCache:
    return ModelCache(models)


def publish(models: Models, cache: ModelCache, *published: PublishedModel) -> None:
    """Save models, and let the cache find the last."""
    for model in published:
        models.save(model)
    cache.poll()


def following(
    cache: ModelCache, version: int | str | None = None, *, p_below: float | None = None, field: str = ""
) -> CurrentModel:
    pins = Pins(cache._models.store, TOPIC)
    needs_past_scores = p_below is not None
    return CurrentModel(
        cache, version, "output", needs_past_scores=needs_past_scores, p_below=p_below, field=field, pins=pins.all
    )


def test_the_model_in_use_is_the_newest(models: Models, cache: ModelCache) -> None:
    model = following(cache)
    assert "no model has been published yet" in model.refresh()
    for version in (3, 8):
        publish(models, cache, numbered(version))
        assert model.refresh() == ""
        assert model.published.version == version
    assert str(model.shape) == "k=2 d=5"


def test_the_model_in_use_is_the_fixed_version(models: Models, cache: ModelCache) -> None:
    publish(models, cache, numbered(3), numbered(8))
    model = following(cache, 3)
    assert (model.refresh(), model.published.version) == ("", 3)
    publish(models, cache, numbered(9, k=3))
    assert (model.refresh(), model.published.version) == ("", 3)
    assert "no model version 4" in refusal(InputError, following(cache, 4).refresh)


@pytest.mark.parametrize(
    ("names", "field", "is_right"),
    [
        ("abcde", "x.a,x.b,x.c,x.d,x.e", True), ("abcde", "v", True), ("", "a,b,c,d,e", True), ("", "", True),
        ("abcde", "b,a,c,d,e", False), ("abcde", "a,b,c,d,f", False),
    ],
)  # fmt: skip
def test_the_names_that_are_read_are_those_of_the_model(
    models: Models, cache: ModelCache, names: str, field: str, is_right: bool
) -> None:
    model = following(cache, field=field)
    publish(models, cache, replace(numbered(3), names=list(names) or None))
    if is_right:
        assert model.refresh() == ""
        return
    lists = f"named {field.replace(',', ', ')} by `field`, but {', '.join(names)} by model version 3"
    assert lists in refusal(SettingsError, model.refresh)


def test_p_values_need_past_scores(models: Models, cache: ModelCache) -> None:
    publish(models, cache, numbered(3))
    model = following(cache, p_below=1.0)
    assert "no past scores yet" in model.refresh()
    assert "version 3 has no past scores" in refusal(InputError, following(cache, 3, p_below=1.0).refresh)
    publish(models, cache, with_past_scores(numbered(8), np.ones((3, 5))))
    assert (model.refresh(), model.published.version) == ("", 8)
    publish(models, cache, numbered(9))  # without any: the one before stays in use
    assert (model.refresh(), model.published.version) == ("", 8)


@pytest.mark.parametrize(("p_below", "warnings"), [(0.26, 0), (0.25, 1)])
def test_too_few_past_scores_for_the_limit_are_a_warning(
    models: Models, cache: ModelCache, p_below: float, warnings: int
) -> None:
    publish(models, cache, with_past_scores(numbered(3), np.ones((3, 5))))
    model = following(cache, p_below=p_below)
    with capture_logs() as logged:
        model.refresh()
        publish(models, cache, with_past_scores(numbered(8), np.ones((3, 5))))
        model.refresh()
    assert [event["version"] for event in logged if event["event"] == "too few past scores"] == [3] * warnings
    assert (model.published.past_scores.p_values(Scores(*np.full((3, 1), 1e9))).score >= 0.25).all()


def test_another_shape_is_refused(models: Models, cache: ModelCache) -> None:
    publish(models, cache, numbered(3))
    model = following(cache)
    model.refresh()
    model.check_metadata("")
    model.check_metadata("k=2 d=5")
    assert "output holds outputs of 3 components of 5 dimensions, but model version 3" in refusal(
        InputError, model.check_metadata, "k=3 d=5"
    )
    publish(models, cache, numbered(8, d=6))
    assert "holds outputs of 2 components of 5 dimensions, but model version 8" in refusal(InputError, model.refresh)
    assert model.published.version == 3  # by which records are still being projected


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("a", r"but a now means version 8, .*: `streampca pin 3 --as a`, or write to another output_topic"),
        (8, "but model_version is 8, .*: set model_version=3, or write to another output_topic"),
        (0, "but model_version is 0, .*: set model_version=3, or write to another output_topic"),
        (None, "but model_version is unset, .*: set model_version=3, or write to another output_topic"),
    ],
)
def test_no_other_version_continues_the_outputs_of_a_fixed_one(
    models: Models, cache: ModelCache, version: int | str | None, says: str
) -> None:
    publish(models, cache, *map(numbered, (0, 3, 8)))
    pins, model = Pins(models.store, TOPIC), following(cache, version)
    pins.set("a", 8)
    assert model.refresh() == ""
    pins.set("a", 3)
    model.refresh()  # but a name is resolved once
    with pytest.raises(InputError, match=f"^output holds outputs of model version 3, {says}"):
        model.check_metadata("k=2 d=5 version=3 topic=x")
    for committed in ("k=2 d=5 topic=version", str(model.shape)):
        model.check_metadata(committed)
    text = "no model is pinned as 'b'; the names there are: a"
    assert refusal(InputError, following(cache, "b").refresh).endswith(text)


def test_no_model_is_in_use_before_it_is_found(cache: ModelCache) -> None:
    with pytest.raises(ValueError, match="no model"):
        following(cache).published  # noqa: B018 - a property
