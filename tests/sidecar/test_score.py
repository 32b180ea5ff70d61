"""Losses over HTTP agree with `pca/scoring`; p-values come from the model's past scores."""

import io
from typing import Any

import numpy as np
import pytest

from streampca.fold.model_file import PublishedModel
from streampca.pca import scoring
from streampca.pca.model import Model
from streampca.pca.scoring import Calibration
from streampca.settings.commands import ServeSettings
from streampca.sidecar.app import create_app
from streampca.sidecar.v1 import endpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.sidecar.http_client import Client
from tests.sidecar.known import TOPIC, D, known_model
from tests.sidecar.test_projection import post

CHANCE = np.random.default_rng(0)
VECTORS = CHANCE.normal(size=(9, D)) * 3
PAST = CHANCE.normal(size=(500, D)) * 2


def model_with_past() -> tuple[Model, Calibration]:
    model = known_model(30)
    scores = scoring.score(model, PAST)
    return model, Calibration.empty().with_scores(scores, model.noise_variance)


@pytest.fixture(autouse=True)
def _few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_MAX_NUMBERS", 1000)


@pytest.fixture
def calibrated(store: MemoryStore) -> Client:
    model, calibration = model_with_past()
    Models(store, TOPIC).save(PublishedModel(30, model, TOPIC, calibration=calibration))
    return Client(create_app(store, ServeSettings(topic=TOPIC)))


@pytest.fixture
def imputing(store: MemoryStore) -> Client:
    model, calibration = model_with_past()
    published = PublishedModel(30, model, TOPIC, calibration=calibration, settings={"missing": "impute"})
    Models(store, TOPIC).save(published)
    return Client(create_app(store, ServeSettings(topic=TOPIC)))


def test_vectors_with_gaps_get_what_is_to_be_expected_of_them(imputing: Client) -> None:
    model, _ = model_with_past()
    holes = np.where(CHANCE.random(VECTORS.shape) < 0.3, np.nan, VECTORS)
    holes[:, 0] = VECTORS[:, 0]
    nulls = [[None if np.isnan(entry) else entry for entry in row] for row in holes.tolist()]
    filled, scores = scoring.complete(model, holes).vectors, scoring.score(model, holes)
    with imputing as client:
        answers = {act: post(client, f"/v1/{act}", vectors=nulls) for act in ("score", "project", "reconstruct")}
        binary = client.post("/v1/project", content=npy(holes), headers={"content-type": "application/x-npy"}).json()
        raw = {"content-type": "application/octet-stream;dtype=float32"}
        single = client.post("/v1/project", content=holes.astype("<f4").tobytes(), headers=raw).json()
        empty = client.post("/v1/score", json={"vectors": [[1.0] * D, [None] * D]})
    assert answers["score"]["score"] == pytest.approx(scores.score)
    assert answers["score"]["t2"] == pytest.approx(scores.t2)
    assert 0 < min(answers["score"]["p"]) <= 1
    assert np.array(answers["project"]["coordinates"]) == pytest.approx(model.project(filled)[0])
    assert answers["project"]["residual"] == answers["score"]["spe"] == answers["reconstruct"]["squared_error"]
    assert np.array(answers["reconstruct"]["vectors"]) == pytest.approx(model.reconstruct(model.project(filled)[0]))
    assert binary == answers["project"]
    assert np.array(single["coordinates"]) == pytest.approx(np.array(binary["coordinates"]), rel=1e-4, abs=1e-4)
    assert (empty.status_code, empty.json()["error"]) == (422, "vectors[1] has no number")


def test_scores(calibrated: Client) -> None:
    model, calibration = model_with_past()
    scores = scoring.score(model, VECTORS)
    p = calibration.p_values(scores, model.noise_variance)
    with calibrated as client:
        answer = post(client, "/v1/score", vectors=VECTORS.tolist())
    assert answer.pop("version") == 30
    expected = scores._asdict() | {"p": p.score, "p_t2": p.t2, "p_spe": p.spe}
    assert answer == {name: values.tolist() for name, values in expected.items()}
    assert min(answer["p"]) < max(answer["p"])


def test_contributions(calibrated: Client) -> None:
    with calibrated as client:
        answer = post(client, "/v1/score", vectors=VECTORS.tolist(), contributions=2)
        all_of_them = post(client, "/v1/score", vectors=VECTORS.tolist(), contributions=100)
    which, values = scoring.largest_contributions(model_with_past()[0], VECTORS, 2)
    assert [answer["t2_dimensions"], answer["spe_dimensions"]] == which.tolist()
    np.testing.assert_allclose(answer["t2_contributions"], values.t2)
    np.testing.assert_allclose(answer["spe_contributions"], values.spe)
    np.testing.assert_allclose(np.sum(all_of_them["t2_contributions"], axis=1), answer["t2"])
    np.testing.assert_allclose(np.abs(all_of_them["spe_contributions"]).sum(axis=1), answer["spe"])


def test_many_rows_are_scored_like_each_alone(calibrated: Client) -> None:
    many = CHANCE.normal(size=(150, D))
    with calibrated as client:
        together = post(client, "/v1/score", vectors=many.tolist(), contributions=1)
        alone = [post(client, "/v1/score", vectors=[vector], contributions=1) for vector in many[::40].tolist()]
    for field in set(together) - {"version"}:
        np.testing.assert_allclose(together[field][::40], [each[field][0] for each in alone], rtol=1e-9)


def test_a_binary_request_has_the_same_answer(calibrated: Client) -> None:
    with calibrated as client:
        plain = post(client, "/v1/score", vectors=VECTORS.tolist(), contributions=2)
        response = client.post(
            "/v1/score?contributions=2",
            content=VECTORS.astype("<f8").tobytes(),
            headers={"Content-Type": "application/octet-stream;dtype=float64", "Accept": "application/x-npz"},
        )
    with np.load(io.BytesIO(response.content)) as arrays:
        assert {name: arrays[name].tolist() for name in arrays} == plain


def test_a_projection_has_the_scores_that_are_asked_for(calibrated: Client) -> None:
    with calibrated as client:
        scores = post(client, "/v1/score", vectors=VECTORS.tolist())
        plain = post(client, "/v1/project", vectors=VECTORS.tolist(), basis="whitened")
        more = post(client, "/v1/project", vectors=VECTORS.tolist(), basis="whitened", fields=["p", "t2"])
        binary = client.post(
            "/v1/project?fields=p,t2&basis=whitened",
            content=npy(VECTORS),
            headers={"Content-Type": "application/x-npy"},
        ).json()
    assert more == binary == plain | {name: scores[name] for name in ("p", "t2")}


def test_a_model_without_past_scores_has_no_p(client: Client) -> None:
    answer = post(client, "/v1/score", vectors=VECTORS.tolist())
    assert (answer["p"], answer["p_t2"], answer["p_spe"]) == (None, None, None)
    assert len(answer["score"]) == len(VECTORS)
    response = client.post("/v1/score", json={"vectors": VECTORS.tolist()}, headers={"Accept": "application/x-npz"})
    with np.load(io.BytesIO(response.content)) as arrays:
        assert set(arrays) == {"version", "t2", "spe", "score"}


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        ({"vectors": [[1e200] * D]}, 422, "too large"),
        ({"vectors": [[1.0] * (D + 1)]}, 422, "this model has 5"),
        ({"vectors": [[1.0] * D], "contributions": -1}, 422, "contributions"),
        ({"vectors": [[1.0] * D], "contributions": 1.5}, 422, "contributions"),
        ({"vectors": [[1.0] * D], "basis": "whitened"}, 422, "unknown field 'basis'"),
        ({"vectors": [[1.0] * D] * 100, "contributions": 3}, 413, "ask for at most 2 contributions"),
    ],
)
def test_mistakes(calibrated: Client, content: dict[str, Any], status: int, text: str) -> None:
    with calibrated as client:
        answer = client.post("/v1/score", json=content)
    assert answer.status_code == status
    assert text in answer.json()["error"]


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
