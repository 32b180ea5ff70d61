"""What the release before has learned survives an upgrade: its files, which lie here, are read and learned from.

`make.py` has written them, by that release's code, with what that release reads in them.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from streampca.errors import DamagedFileError
from streampca.fold import checkpoint as checkpoints, earlier_format, model_file as models, npz
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import MergedFold
from streampca.pca import axes
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import triangle
from streampca.pca.state import State
from tests.errors import refusal
from tests.fold.streams import learn

FOLDER = Path(__file__).parent
CHECKPOINTS = sorted(path.stem for path in FOLDER.glob("checkpoints/*.npz"))
MODELS = sorted(path.stem for path in FOLDER.glob("models/*.npz"))
WITH_GAPS = [name for name in CHECKPOINTS if name.startswith("gaps")]


@cache
def arrays_in(file: str) -> dict[str, Array]:
    with np.load(FOLDER / file, allow_pickle=False) as members:
        return dict(members)


def figures_of(name: str) -> dict[str, Array]:
    """What the release before reads in a file."""
    return {
        key.removeprefix(f"{name}/"): array
        for key, array in arrays_in("figures.npz").items()
        if key.startswith(f"{name}/")
    }


def following(name: str) -> Array:
    """The vectors that follow those that a file has learned."""
    return arrays_in("vectors.npz")[name.removesuffix("-published").removesuffix("-fitted")]


def checkpoint(name: str) -> Checkpoint:
    return checkpoints.decode((FOLDER / f"checkpoints/{name}.npz").read_bytes())


def model(name: str) -> models.PublishedModel:
    return models.decode((FOLDER / f"models/{name}.npz").read_bytes())


def as_read(name: str, array: Array) -> F64:
    """Σ (d, d) of the figures with correlations of at most 1."""
    root = np.sqrt(array.diagonal())
    return np.asarray(np.clip(array, -np.outer(root, root), np.outer(root, root)))


def read_in(state: State) -> dict[str, Array]:
    """What this release reads in a state, by the names of the figures."""
    found = {"mean": state.mean, "C": state.C, "numbers": np.array([state.weight, state.total_variance, state.count])}
    if state.covariance is not None:
        found["covariance"] = triangle.unpack(state.covariance, len(state.mean))
    optional = {"missing": state.missing, "scale": state.scale}
    found |= {name: array for name, array in optional.items() if array is not None}
    return found | ({} if state.scale is None else {"variances": state.entry_variances})


def assert_equal(found: dict[str, Array], figures: dict[str, Array], rounding: float = 1e-12) -> None:
    assert found.keys() == figures.keys()
    for name, array in found.items():
        size = np.abs(figures[name]).max(initial=0.0)
        assert np.abs(array - figures[name]).max(initial=0.0) <= rounding * size, name


def after(fold: Fold, V: Array, config: FoldConfig) -> Fold:
    """The fold after these vectors, a second apart."""
    start = max(fold.position, 0)
    times = (10**12 + 1000 * (start + np.arange(len(V)))).tolist()
    return learn(fold, V.astype(config.learning.dtype), times, start + len(V), config)[0]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_is_read_as_the_release_before_reads_it(name: str) -> None:
    read, figures = checkpoint(name), figures_of(f"checkpoints/{name}")
    unseen = figures.pop("unseen", np.zeros(len(read.fold.state.mean)))
    figures = {key: array for key, array in figures.items() if not key.startswith("next_")}
    if "covariance" in figures:
        figures["covariance"] = as_read(name, figures["covariance"])
    assert_equal(read_in(read.fold.state), figures)
    assert (read.topic, read.names) == (
        "readings",
        [f"sensor {i}" for i in range(6)] if "half-life" in name and "complete" in name else None,
    )
    known = np.where(unseen > 1 - 1e-12, 0.0, 1 - unseen)
    if read.fold.state.covariance is not None:
        known = np.minimum.outer(known, known)[np.tril_indices(len(known))]
    of_state = read.fold.state.known
    assert (of_state is None) == (known.min(initial=1.0) == 1.0)
    assert np.allclose(1.0 if of_state is None else of_state, known, rtol=0, atol=1e-15)


def test_the_files_are_of_every_kind() -> None:
    folds = {name: checkpoint(name).fold for name in CHECKPOINTS}
    known = {name: fold.state.known_shares for name, fold in folds.items()}
    for name in ("gaps-late-dying-never", "gaps-standardized", "gaps-wide", "gaps-wide-standardized", "gaps-half-life"):
        entries = known[name]
        assert entries is not None
        assert entries[-1] == 0  # never seen
        assert 0.3 < entries[0] < 0.9  # late
        assert entries[1] > 0.3
    assert folds["gaps"].state.known is None
    assert folds["gaps"].state.missing is not None
    figures = figures_of("checkpoints/gaps-correlated")["covariance"]
    assert np.abs(figures - as_read("", figures)).max() > 0.01  # correlations above 1, which the release before learned
    assert len(folds["pending-with-gaps"].pending) > 200
    assert np.isnan(folds["pending-with-gaps"].pending).any()
    assert folds["gaps-wide"].state.covariance is None
    for name in CHECKPOINTS:
        data = (FOLDER / f"checkpoints/{name}.npz").read_bytes()
        assert npz.decode(data, checkpoints.KIND, 3)[0]["format_version"] == 3


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_learning_goes_on_is_saved_in_the_new_format_and_read_again(name: str) -> None:
    read = checkpoint(name)
    config = FoldConfig.from_dict(read.settings, read.names)
    read.refuse_other_settings(config)
    again = checkpoints.encode(read)
    assert npz.decode(again, checkpoints.KIND, checkpoints.FORMAT_VERSION)[0]["format_version"] == 4
    assert checkpoints.encode(checkpoints.decode(again)) == again
    next_fold = after(read.fold, following(name), config)
    direct = checkpoints.encode(replace(read, fold=next_fold))
    by_file = after(checkpoints.decode(again).fold, following(name), config)
    assert checkpoints.encode(replace(read, fold=by_file)) == direct
    state = checkpoints.decode(direct).fold.provisional(config.learning)
    assert np.isfinite(state.mean).all()
    if name.startswith("complete"):
        figures = figures_of(f"checkpoints/{name}")
        figures = {key.removeprefix("next_"): array for key, array in figures.items() if key.startswith("next_")}
        rounding = 1e-5 if config.learning.dtype == "float32" else 1e-9
        assert_equal(read_in(state), figures, rounding)


@pytest.mark.parametrize("name", WITH_GAPS)
def test_what_was_learned_is_not_lost_when_learning_goes_on(name: str) -> None:
    """The vectors that follow change the moments that the release before has read a little."""
    read = checkpoint(name)
    config, V = FoldConfig.from_dict(read.settings, read.names), following(name)
    figures, state = figures_of(f"checkpoints/{name}"), after(read.fold, V, config).provisional(config.learning)
    deviation = np.sqrt(figures["covariance"].diagonal()) if "covariance" in figures else np.full(len(state.mean), 3.0)
    assert (np.abs(state.mean - figures["mean"]) <= 0.5 * deviation + 1e-9).all()
    assert state.total_variance == pytest.approx(figures["numbers"][1], rel=0.25)
    assert state.weight > figures["numbers"][0] * 0.9


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_read_as_the_release_before_serves_it(name: str) -> None:
    published, figures = model(name), figures_of(f"models/{name}")
    for array in ("components", "explained_variance", "mean"):
        assert np.array_equal(getattr(published.model, array), figures[array])
    never = getattr(published.model, "seen", None)
    if never is None or never.all():  # else σ² is another one: it was divided by dimensions that were never there
        projected = published.project(following(name)[-5:])
        assert np.allclose(projected.coordinates, figures["coordinates"], rtol=1e-9, atol=1e-9)
        assert np.allclose(np.stack(projected.scores), figures["scores"], rtol=1e-7)
        # Past scores of a file are multiples of expected ones, which were smaller then: that axes fit the learned
        # messages together did not count. So until these scores are forgotten, p is a little off.
        assert np.abs(projected.p - figures["p"]).max() <= 0.02
    assert models.encode(models.decode(models.encode(published))) == models.encode(published)


@pytest.mark.parametrize("name", MODELS)
def test_a_dimension_that_no_message_has_shown_is_found_in_a_model(name: str) -> None:
    header, arrays = npz.decode((FOLDER / f"models/{name}.npz").read_bytes(), models.KIND, 2)
    _, converted = earlier_format.upgrade_model(header, arrays)
    has_unseen = name.startswith("gaps") and not name.startswith(("gaps-published", "gaps-correlated"))
    assert ("seen" in converted) == has_unseen
    assert ("known" in converted) == (has_unseen and "learned" in arrays)
    if has_unseen:
        assert np.flatnonzero(~converted["seen"]).tolist() == [len(arrays["mean"]) - 1]


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith("fitted")])
def test_a_model_of_a_file_is_continued(name: str) -> None:
    published, V = model(name), following(name)
    assert published.covariance_or_axes is not None
    config = FoldConfig.from_dict(published.settings, published.names)
    known = [published.known] if hasattr(published, "known") else []
    state = axes.restore_state(
        published.model, published.covariance_or_axes, *known, published.version, config.learning
    )
    assert state.count == published.version
    fold = after(replace(Fold.empty(config.learning), state=state), V, config)
    merged = MergedFold.from_fold(fold, config)
    assert merged.state.total_variance == pytest.approx(published.model.total_variance, rel=0.25)


def damaged() -> Iterator[tuple[dict[str, object], dict[str, Array]]]:
    """Headers and arrays of a checkpoint with gaps that no release has written."""
    data = (FOLDER / "checkpoints/gaps-standardized.npz").read_bytes()
    header, arrays = npz.decode(data, checkpoints.KIND, 3)
    unseen, d = arrays["unseen"], len(arrays["unseen"])
    for wrong in (unseen[1:], unseen.astype(np.float32), np.full(d, 1.1), np.full(d, -0.1), np.full(d, np.nan)):
        yield header, arrays | {"unseen": wrong}
    yield header, arrays | {"covariance": arrays["covariance"][1:]}
    yield header, arrays | {"covariance": arrays["covariance"] * np.nan}
    yield header, arrays | {"other": unseen}
    yield header, {name: array for name, array in arrays.items() if name != "C"}
    yield header | {"weight": "1"}, arrays


@pytest.mark.parametrize(("header", "arrays"), list(damaged()))
def test_damaged_files_of_the_release_before_are_refused(header: dict[str, object], arrays: dict[str, Array]) -> None:
    refusal(DamagedFileError, checkpoints.decode, npz.encode(header, arrays))
