"""Projections, reconstructions and scores over HTTP agree with NumPy, with scikit-learn and with `Model.project`."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from streampca.fold.model_file import PublishedModel
from streampca.pca.model import Model
from streampca.pca.past_scores import PastScores
from streampca.sidecar import engine
from tests.example_models import TOPIC, D, example_model, numbered, standardised, stats_of
from tests.formats.structured import npy
from tests.sidecar.http_client import Client, create_client, read_error

CHANCE = np.random.default_rng(0)
VECTORS = CHANCE.normal(size=(7, D)) * 3


def post(client: Client, path: str, **content: Any) -> dict[str, Any]:
    answer = client.post(path, json=content)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    fields: dict[str, Any] = answer.json()
    assert answer.headers["x-model-version"] == str(fields["version"])
    return fields


@pytest.mark.parametrize(
    ("parameters", "version"), [({}, 20), ({"version": None}, 20), ({"version": 20}, 20), ({"version": 10}, 10)]
)
def test_projects_onto_the_axes_of_the_requested_version(client: Client, parameters: Any, version: int) -> None:
    answer = post(client, "/v1/project", vectors=VECTORS.tolist(), **parameters)
    model = example_model(version)
    coordinates = np.stack([model.components @ (vector - model.mean) for vector in VECTORS])
    flat = coordinates @ model.components + model.mean
    assert answer["version"] == version
    np.testing.assert_allclose(answer["coordinates"], coordinates, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(answer["residual"], ((VECTORS - flat) ** 2).sum(axis=1), rtol=1e-10)
    assert set(answer) == {"version", "coordinates", "residual"}


def test_agrees_with_scikit_learn() -> None:
    data = CHANCE.normal(size=(200, 6)) @ CHANCE.normal(size=(6, 6)) + CHANCE.normal(size=6)
    pca, white = PCA(3).fit(data), PCA(3, whiten=True).fit(data)
    total = float(pca.explained_variance_.sum() / pca.explained_variance_ratio_.sum())
    model = Model(pca.components_, pca.explained_variance_, pca.mean_, total, 200.0)
    with create_client(PublishedModel(200, model, stats_of(), TOPIC)) as client:
        some = data[:9]
        answer = post(client, "/v1/project", vectors=some.tolist())
        np.testing.assert_allclose(answer["coordinates"], pca.transform(some), atol=1e-12)
        whitened = post(client, "/v1/project", vectors=some.tolist(), basis="whitened")
        np.testing.assert_allclose(whitened["coordinates"], white.transform(some), atol=1e-12)
        again = post(client, "/v1/reconstruct", coordinates=answer["coordinates"])
        np.testing.assert_allclose(again["vectors"], pca.inverse_transform(pca.transform(some)), atol=1e-12)
        again = post(client, "/v1/reconstruct", coordinates=whitened["coordinates"], basis="whitened")
        np.testing.assert_allclose(again["vectors"], white.inverse_transform(white.transform(some)), atol=1e-12)
        about = client.get("/v1/model").json()
        np.testing.assert_allclose(about["explained_variance_ratio"], pca.explained_variance_ratio_, rtol=1e-12)


def test_reconstructs_from_coordinates_and_from_vectors(client: Client) -> None:
    projected = post(client, "/v1/project", vectors=VECTORS.tolist())
    by_coordinates = post(client, "/v1/reconstruct", coordinates=projected["coordinates"])
    by_vectors = post(client, "/v1/reconstruct", vectors=VECTORS.tolist(), basis="whitened")
    assert set(by_coordinates) == {"version", "vectors"}
    assert set(by_vectors) == {"version", "vectors", "squared_error"}
    np.testing.assert_allclose(by_coordinates["vectors"], by_vectors["vectors"], atol=1e-12)
    error = ((np.array(by_vectors["vectors"]) - VECTORS) ** 2).sum(axis=1)
    np.testing.assert_allclose(by_vectors["squared_error"], error, rtol=1e-10)
    np.testing.assert_allclose(by_vectors["squared_error"], projected["residual"], rtol=1e-12)


def test_a_model_of_a_standardised_stream_answers_in_standard_deviations_and_reconstructs_in_the_datas_units() -> None:
    published = standardised(numbered(20))
    with create_client(published) as client:
        axes = client.get("/v1/model/components").json()
        components, mean, scale = (np.array(axes[name]) for name in ("components", "mean", "scale"))
        answer = post(client, "/v1/project", vectors=VECTORS.tolist())
        again = post(client, "/v1/reconstruct", vectors=VECTORS.tolist())
        settings = client.get("/v1/model").json()["settings"]
    deviations = (VECTORS - mean) * scale
    np.testing.assert_allclose(answer["coordinates"], deviations @ components.T, rtol=1e-12, atol=1e-12)
    errors = (VECTORS - again["vectors"]) * scale
    np.testing.assert_allclose(answer["residual"], np.square(errors).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(errors @ components.T, 0, atol=1e-12)
    assert again["squared_error"] == answer["residual"]
    assert settings["standardize"] is True


def test_a_request_may_have_no_vectors_or_whole_numbers(client: Client) -> None:
    assert post(client, "/v1/project", vectors=[]) == {"version": 20, "coordinates": [], "residual": []}
    assert post(client, "/v1/reconstruct", coordinates=[]) == {"version": 20, "vectors": []}
    assert post(client, "/v1/reconstruct", vectors=[]) == {"version": 20, "vectors": [], "squared_error": []}
    whole = post(client, "/v1/project", vectors=[[1, 2, 3, 4, 18446744073709551615]])
    assert whole == post(client, "/v1/project", vectors=[[1.0, 2.0, 3.0, 4.0, 18446744073709551615.0]])


def test_a_model_in_float32_is_served() -> None:
    model = example_model(1, dtype=np.float32)
    with create_client(PublishedModel(1, model, stats_of(), TOPIC)) as client:
        answer = post(client, "/v1/project", vectors=VECTORS.tolist())
        np.testing.assert_allclose(answer["coordinates"], (VECTORS - model.mean) @ model.components.T, rtol=1e-12)
        file = client.get("/v1/model/components", headers={"Accept": "application/x-npy"})
        assert np.load(io.BytesIO(file.content)).dtype == np.float32


def test_components_are_the_axes_in_json_and_npy(client: Client) -> None:
    for version in (10, 20):
        model, where = example_model(version), f"/v1/model/components?version={version}"
        content = client.get(where).json()
        assert content["version"] == version
        np.testing.assert_array_equal(content["components"], model.components)
        np.testing.assert_array_equal(content["mean"], model.mean)
        assert content["scale"] is None
        np.testing.assert_array_equal(content["explained_variance"], model.explained_variance)
        for accept in ("application/x-npy", "application/x-npy;q=0.9, application/json"):
            answer = client.get(where, headers={"Accept": accept})
            assert answer.headers["content-type"] == "application/x-npy"
            assert answer.headers["x-model-version"] == str(version)
            np.testing.assert_array_equal(np.load(io.BytesIO(answer.content), allow_pickle=False), model.components)
        for accept in ("*/*", "application/json", "text/html,*/*;q=0.8", "application/json, application/x-npy"):
            assert client.get(where, headers={"Accept": accept}).headers["content-type"] == "application/json"


# --- scores ---

PAST = CHANCE.normal(size=(500, D)) * 2


def model_with_past(**more: Any) -> PublishedModel:
    model = example_model(30)
    past_scores = PastScores.empty().with_scores(model.project(PAST).relative_scores)
    return PublishedModel(30, model, stats_of(), TOPIC, past_scores=past_scores, **more)


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(engine, "_MAX_NUMBERS", 1000)
    with create_client(model_with_past()) as client:
        yield client


def test_missing_entries_are_replaced_by_their_expected_values() -> None:
    published = model_with_past(settings={"missing": "impute"})
    holes = np.where(CHANCE.random(VECTORS.shape) < 0.3, np.nan, VECTORS)
    holes[:, 0] = VECTORS[:, 0]
    nulls = [[None if np.isnan(entry) else entry for entry in row] for row in holes.tolist()]
    projected = published.project(holes)
    scores, coordinates = projected.scores, projected.coordinates
    with create_client(published) as client:
        answers = {act: post(client, f"/v1/{act}", vectors=nulls) for act in ("score", "project", "reconstruct")}
        binary = client.post("/v1/project", content=npy(holes), headers={"content-type": "application/x-npy"}).json()
        raw = {"content-type": "application/octet-stream;dtype=float32"}
        single = client.post("/v1/project", content=holes.astype("<f4").tobytes(), headers=raw).json()
        empty = client.post("/v1/score", json={"vectors": [[1.0] * D, [None] * D]})
    assert answers["score"]["score"] == pytest.approx(scores.score)
    assert answers["score"]["t2"] == pytest.approx(scores.t2)
    assert 0 < min(answers["score"]["p"]) <= 1
    assert np.array(answers["project"]["coordinates"]) == pytest.approx(coordinates)
    assert answers["project"]["residual"] == answers["score"]["spe"] == answers["reconstruct"]["squared_error"]
    assert np.array(answers["reconstruct"]["vectors"]) == pytest.approx(published.model.reconstruct(coordinates))
    assert binary == answers["project"]
    assert np.array(single["coordinates"]) == pytest.approx(np.array(binary["coordinates"]), rel=1e-4, abs=1e-4)
    assert read_error(empty, 422) == "vectors[1] has no number"


def test_scores(calibrated: Client) -> None:
    projected = model_with_past().project(VECTORS)
    p = projected.p_values
    assert "too large" in read_error(calibrated.post("/v1/score", json={"vectors": [[1e200] * D]}), 422)
    answer = post(calibrated, "/v1/score", vectors=VECTORS.tolist())
    assert answer.pop("version") == 30
    expected = projected.scores._asdict() | {"p": p.score, "p_t2": p.t2, "p_spe": p.spe}
    assert answer == {name: values.tolist() for name, values in expected.items()}
    assert min(answer["p"]) < max(answer["p"])


def test_contributions(calibrated: Client) -> None:
    refused = calibrated.post("/v1/score", json={"vectors": [[1.0] * D] * 100, "contributions": 3})
    assert "ask for at most 2 contributions" in read_error(refused, 413)
    assert "contributions" in read_error(calibrated.post("/v1/score", json={"vectors": [], "contributions": -1}), 422)
    answer = post(calibrated, "/v1/score", vectors=VECTORS.tolist(), contributions=2)
    all_of_them = post(calibrated, "/v1/score", vectors=VECTORS.tolist(), contributions=100)
    which, values = model_with_past().project(VECTORS).contributions(2)
    assert [answer["t2_dimensions"], answer["spe_dimensions"]] == which.tolist()
    np.testing.assert_allclose(answer["t2_contributions"], values.t2)
    np.testing.assert_allclose(answer["spe_contributions"], values.spe)
    np.testing.assert_allclose(np.sum(all_of_them["t2_contributions"], axis=1), answer["t2"])
    np.testing.assert_allclose(np.abs(all_of_them["spe_contributions"]).sum(axis=1), answer["spe"])


def test_many_rows_are_scored_like_each_alone(calibrated: Client) -> None:
    many = CHANCE.normal(size=(150, D))
    together = post(calibrated, "/v1/score", vectors=many.tolist(), contributions=1)
    alone = [post(calibrated, "/v1/score", vectors=[vector], contributions=1) for vector in many[::40].tolist()]
    for field in set(together) - {"version"}:
        np.testing.assert_allclose(together[field][::40], [answer[field][0] for answer in alone], rtol=1e-9)


def test_a_projection_has_the_scores_that_are_asked_for(calibrated: Client) -> None:
    scores = post(calibrated, "/v1/score", vectors=VECTORS.tolist())
    plain = post(calibrated, "/v1/project", vectors=VECTORS.tolist(), basis="whitened")
    more = post(calibrated, "/v1/project", vectors=VECTORS.tolist(), basis="whitened", fields=["p", "t2"])
    binary = calibrated.post(
        "/v1/project?fields=p,t2&basis=whitened", content=npy(VECTORS), headers={"Content-Type": "application/x-npy"}
    ).json()
    assert more == binary == plain | {name: scores[name] for name in ("p", "t2")}


def test_a_model_without_past_scores_has_no_p(client: Client) -> None:
    answer = post(client, "/v1/score", vectors=VECTORS.tolist())
    assert (answer["p"], answer["p_t2"], answer["p_spe"]) == (None, None, None)
    assert len(answer["score"]) == len(VECTORS)
    response = client.post("/v1/score", json={"vectors": VECTORS.tolist()}, headers={"Accept": "application/x-npz"})
    with np.load(io.BytesIO(response.content)) as arrays:
        assert set(arrays) == {"version", "t2", "spe", "score"}


def test_missing_values_of_the_model_are_read_as_null() -> None:
    settings = {"missing": "impute", "missing_values": "-9999, 0.1", "dtype": "float32"}
    published = model_with_past(settings=settings, names=list("abcde"))
    gaps = [[1.0, None, 0.5, None, 2.0]]
    codes = [[1.0, -9999, 0.5, float(np.float32(0.1)), 2.0]]
    with create_client(published) as client:
        expected = post(client, "/v1/project", vectors=gaps)
        assert post(client, "/v1/project", vectors=codes) == expected
        assert post(client, "/v1/project", records=[dict(zip("abcde", codes[0], strict=True))]) == expected
        empty = client.post("/v1/score", json={"vectors": [[-9999] * D]})
    assert read_error(empty, 422) == "vectors[0] has no number"
    with create_client(model_with_past(settings=settings | {"missing": "refuse"})) as client:
        refused = client.post("/v1/score", json={"vectors": codes})
    words = "vectors[0][1] must be a finite number, not -9999.0, one of missing_values (this model was learned with"
    assert read_error(refused, 422).startswith(words)
