"""Files of estimators: learning continues from them without a break, and everything that takes a model takes them."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from streampca import StreamingPCA, merge
from streampca.errors import DamagedFileError, EarlierFormatError, NewerFormatError, StoreError
from streampca.fold import checkpoint as checkpoints, model_file
from streampca.fold.checkpoint import Checkpoint
from streampca.pca.arrays import F64, Array
from tests.command_line import printed
from tests.earlier_release.test_earlier_release import FOLDER as EARLIER, following
from tests.errors import refusal
from tests.example_models import newer, of_format
from tests.pca.streams import close, gaussian, with_gaps

UNITS = np.logspace(-3, 3, 8)
X = gaussian(0, 1500, 1 / np.arange(1, 9.0), offset=2.0) * UNITS
NAMES = [f"sensor {i}" for i in range(8)]
ATTRIBUTES = (
    "components_", "explained_variance_", "explained_variance_ratio_", "mean_", "scale_", "noise_variance_", "var_",
    "n_components_", "n_samples_seen_", "n_clipped_", "n_features_in_",
)  # fmt: skip

SORTS = {
    "as many components as features": {"n_components": 8},
    "all components": {},
    "a share": {"n_components": 0.9},
    "a number by Minka's rule": {"n_components": "mle"},
    "gaps": {"n_components": 2, "missing": "impute", "missing_values": [-9999.0, np.inf]},
    "gaps in all components": {"missing": "impute"},
    "standardised": {"n_components": np.int64(3), "standardize": True, "whiten": True},
    "standardised gaps": {"n_components": 2, "standardize": True, "missing": "impute"},
    "half-life": {"n_components": 3, "half_life": 300},
    "not centred": {"n_components": 3, "center": False},
    "float32": {"n_components": 3, "dtype": np.float32, "oversampling": 1, "warm_up": 50, "batch_size": 7},
}


def rows_for(parameters: dict[str, Any], rows: F64 = X) -> F64:
    return with_gaps(rows, 0.1) if parameters.get("missing") == "impute" else rows


def loaded_after_saving(pca: StreamingPCA, path: Path) -> StreamingPCA:
    pca.save(path)
    return StreamingPCA.load(path)


def assert_equal(one: StreamingPCA, other: StreamingPCA, rows: Array) -> None:
    """Both have the same attributes and outputs, to the last bit."""
    for name in ATTRIBUTES:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for method in ("transform", "p_values", "score_samples"):
        np.testing.assert_array_equal(getattr(one, method)(rows), getattr(other, method)(rows), err_msg=method)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("row_count", [2, 150, 256, 1100])
def test_learning_continues_as_without_a_break(sort: str, row_count: int, tmp_path: Path) -> None:
    parameters = SORTS[sort]
    rows = rows_for(parameters)
    if sort.startswith("gaps") and row_count == 2:
        rows = np.vstack([X[:2], rows[2:]])  # so that every entry has been seen
    pca = StreamingPCA(**parameters).fit(rows[:row_count])
    loaded = loaded_after_saving(pca, tmp_path / "first.npz")
    assert_equal(loaded, pca, rows)
    again = loaded_after_saving(loaded, tmp_path / "second.npz")
    for estimator in (pca, loaded, again):
        estimator.partial_fit(rows[row_count:])
    assert_equal(loaded, pca, rows)
    assert_equal(again, pca, rows)


def test_beyond_768_features_learning_continues_as_without_a_break(tmp_path: Path) -> None:
    rows = gaussian(1, 600, 1 / np.arange(1, 801.0))
    pca = StreamingPCA(3).fit(rows[:400])
    loaded = loaded_after_saving(pca, tmp_path / "model.npz").partial_fit(rows[400:])
    assert_equal(loaded, pca.partial_fit(rows[400:]), rows[:50])


@pytest.mark.parametrize("sort", SORTS)
def test_parameters_are_kept(sort: str, tmp_path: Path) -> None:
    pca = StreamingPCA(**SORTS[sort]).fit(rows_for(SORTS[sort]))
    expected = pca.get_params()
    if sort == "float32":
        expected["dtype"] = "float32"
    assert loaded_after_saving(pca, tmp_path / "model.npz").get_params() == expected


def test_parameters_that_changed_since_learning_are_those_of_learning(tmp_path: Path) -> None:
    pca = StreamingPCA(3).fit(X).set_params(n_components=5, whiten=True)
    loaded = loaded_after_saving(pca, tmp_path / "model.npz")
    assert (loaded.n_components, loaded.whiten) == (3, True)
    assert_equal(loaded, pca, X)


def test_a_subclass_loads_itself(tmp_path: Path) -> None:
    class Ours(StreamingPCA):
        pass

    StreamingPCA(2).fit(X).save(tmp_path / "model.npz")
    assert type(Ours.load(str(tmp_path / "model.npz"))) is Ours


def test_names_of_columns_are_kept(tmp_path: Path) -> None:
    table = pd.DataFrame(X, columns=NAMES)
    loaded = loaded_after_saving(StreamingPCA(2).fit(table), tmp_path / "model.npz")
    assert loaded.feature_names_in_.tolist() == NAMES
    loaded.partial_fit(table)
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.transform(table[NAMES[::-1]])
    without_names = loaded_after_saving(StreamingPCA(2).fit(X), tmp_path / "model.npz")
    assert not hasattr(without_names, "feature_names_in_")
    for name in ("", "a" * 256):
        pca = StreamingPCA(2).fit(pd.DataFrame(X, columns=[name, *NAMES[1:]]))
        assert "8 different names of 1 to 255 characters" in refusal(ValueError, pca.save, tmp_path / "model.npz")
    assert not hasattr(StreamingPCA.load(tmp_path / "model.npz"), "feature_names_in_")  # the file is as it was


def test_the_file_has_no_pickle_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    StreamingPCA(2).fit(X).save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as members:
        assert all(members[name].dtype != object for name in members.files)
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]
    absent = tmp_path / "absent" / "model.npz"
    assert str(absent) in refusal(FileNotFoundError, StreamingPCA(2).fit(X).save, absent)


def test_what_was_not_fitted_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        StreamingPCA().save(tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())


def test_a_loaded_estimator_merges_as_the_saved_one(tmp_path: Path) -> None:
    halves = [StreamingPCA(3).fit(half) for half in (X[:700], X[700:])]
    loaded = loaded_after_saving(halves[0], tmp_path / "model.npz")
    assert_equal(merge([loaded, halves[1]]), merge(halves), X)
    others = (StreamingPCA(4).fit(X), StreamingPCA(3, half_life=9).fit(X), StreamingPCA(3).fit(X[:, :5]))
    for other in others:
        assert "same parameters" in refusal(ValueError, merge, [loaded, other])
    named = [StreamingPCA(3).fit(pd.DataFrame(X, columns=names)) for names in (NAMES, NAMES[::-1])]
    loaded = loaded_after_saving(named[0], tmp_path / "model.npz")
    assert "same feature names" in refusal(ValueError, merge, [loaded, named[1]])


def test_whoever_projects_a_model_projects_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", X)
    pca = StreamingPCA(0.9, standardize=True).fit(X[:1000])
    pca.save(tmp_path / "model.npz")
    printed("project", tmp_path / "v.npy", "--model", tmp_path / "model.npz", "-o", tmp_path / "out.npy")
    assert close(np.load(tmp_path / "out.npy"), pca.transform(X), 1e-9)
    facts = json.loads(printed("inspect", tmp_path / "model.npz", "--json"))
    assert (facts["version"], facts["components"], facts["estimator"]["n_components"]) == (1000, pca.n_components_, 0.9)


@pytest.mark.parametrize("n_components", [3, None, 0.9])
def test_fit_continues_the_file_as_without_a_break(n_components: float | None, tmp_path: Path) -> None:
    """With a share of the variance, the number of components stays what it was."""
    np.save(tmp_path / "v.npy", X[700:])
    pca = StreamingPCA(n_components).fit(X[:700])
    pca.save(tmp_path / "model.npz")
    k = pca.n_components_
    printed("fit", tmp_path / "v.npy", "--start-from", tmp_path / "model.npz", "-o", tmp_path / "next.npz")
    whole = StreamingPCA(k).fit(X)
    continued = StreamingPCA.load(tmp_path / "next.npz")
    assert (continued.n_samples_seen_, continued.n_components_) == (1500, k)
    assert close(continued.components_, whole.components_, 1e-9)
    assert close(continued.explained_variance_, whole.explained_variance_, 1e-9)


@pytest.mark.parametrize("options", [(), ("--standardize",), ("--missing", "impute"), ("--half-life", 500)])
def test_a_file_of_fit_is_loaded_and_continued_to_rounding(options: tuple[object, ...], tmp_path: Path) -> None:
    rows = np.array(X)
    if "impute" in options:
        rows[::2, 5] = np.nan
    pd.DataFrame(rows[:700], columns=NAMES).to_csv(tmp_path / "v.csv", index=False)
    printed("fit", tmp_path / "v.csv", "-o", tmp_path / "model.npz", "--components", 3, *options)
    loaded = StreamingPCA.load(tmp_path / "model.npz")
    published = model_file.decode((tmp_path / "model.npz").read_bytes())
    assert loaded.feature_names_in_.tolist() == NAMES
    table = pd.DataFrame(rows, columns=NAMES)
    expected = published.model.project(rows).in_basis("principal")
    np.testing.assert_array_equal(loaded.transform(table), expected)
    again = loaded_after_saving(loaded, tmp_path / "again.npz")
    np.testing.assert_array_equal(again.transform(table), expected)
    whole = StreamingPCA(**loaded.get_params()).fit(table)
    for estimator in (loaded, again):
        estimator.partial_fit(table[700:])
        assert estimator.n_samples_seen_ == 1500
        assert close(estimator.explained_variance_, whole.explained_variance_, 1e-3)


PUBLISHED = ["complete-published", "complete-standardized-published", "complete-wide-published",
             "gaps-half-life-published"]  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_workers_model_projects_and_says_that_it_cannot_learn_on(name: str, tmp_path: Path) -> None:
    """These files are also of the release before."""
    file = EARLIER / f"models/{name}.npz"
    rows = following(name)[:50]
    published = model_file.decode(file.read_bytes())
    expected = published.model.project(rows.astype(np.float64)).in_basis("principal").astype(rows.dtype)
    loaded = StreamingPCA.load(file)
    for estimator in (loaded, loaded_after_saving(loaded, tmp_path / "again.npz")):
        np.testing.assert_array_equal(estimator.transform(rows), expected)
        assert np.isfinite(estimator.score_samples(rows)).all()
        assert estimator.n_samples_seen_ == published.version
        assert "holds no fold" in refusal(ValueError, estimator.partial_fit, rows)
        assert "holds no fold" in refusal(ValueError, merge, [estimator, estimator])
        np.testing.assert_array_equal(estimator.transform(rows), expected)
    assert loaded.fit(rows[:1]).n_samples_seen_ == 1  # it starts again


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    pca = StreamingPCA(2).fit(X)
    pca.save(path)
    data = path.read_bytes()

    def refused(error: type[Exception], content: bytes) -> str:
        path.write_bytes(content)
        text = refusal(error, StreamingPCA.load, path)
        assert error in (NewerFormatError, EarlierFormatError) or str(path) in text
        return text

    position = len(data) // 2
    assert "damaged" in refused(DamagedFileError, data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    assert "cut short" in refused(DamagedFileError, data[:-1])
    assert "not a model of streampca" in refused(StoreError, b"")
    assert "it is an .npy array" in refused(StoreError, b"\x93NUMPY" + data)
    refused(NewerFormatError, newer(data, model_file.KIND))
    refused(EarlierFormatError, of_format(1, data, model_file.KIND))
    fold = pca.online_.fold
    checkpoint = Checkpoint("t", "", 0, fold, settings=pca.online_.config.as_dict())
    assert "this is a checkpoint file" in refused(DamagedFileError, checkpoints.encode(checkpoint))
    path.unlink()
    refusal(FileNotFoundError, StreamingPCA.load, path)


def test_what_saves_does_not_change(tmp_path: Path) -> None:
    pca = StreamingPCA(2).fit(X[:700])
    components = pca.components_
    pca.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(pca.components_, components)
    assert zipfile.is_zipfile(tmp_path / "model.npz")
