"""The past scores of a stream do not depend on how its messages arrive, and their p-values are uniform."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca.axes import model_of
from streampca.pca.learning import LearningConfig
from streampca.pca.learning import learn as learn_blocks
from streampca.pca.scoring import score
from streampca.pca.scoring.schedule import SCORED, Calibrator, parts
from streampca.pca.state import State
from tests.pca.streams import gaussian

CONFIG = LearningConfig(6, 2, oversampling=1, warm_up=30)
X = gaussian(3, 12_000, np.array([5, 3, 1, 1, 0.5, 0.2]), offset=2.0)


@given(st.integers(0, 5000), st.lists(st.integers(1, 3000), max_size=8), st.integers(1, 300))
def test_parts_are_cut_by_number_alone(seen: int, sizes: list[int], first: int) -> None:
    V, cut = np.arange(sum(sizes))[:, None], np.cumsum([0, *sizes])
    found = [
        (seen + int(row), place + i if place >= 0 else -1)
        for start, end in itertools.pairwise(cut)
        for part, place in parts(V[start:end], seen + int(start), first)
        for i, row in enumerate(part.ravel())
    ]
    assert [number for number, _ in found] == list(range(seen, seen + sum(sizes)))
    for number, place in found:
        assert place == ((number - first - SCORED) % SCORED if number >= first + SCORED else -1)


def calibrated(sizes: list[int]) -> Calibrator:
    calibrator, state, learned, seen = Calibrator(), State.empty(6), 0, 0
    for size in sizes:
        for part, place in parts(X[seen : seen + size], seen, CONFIG.start):
            if place == 0:
                state, _ = learn_blocks(state, X[learned:seen], np.ones(seen - learned), CONFIG)
                learned = seen
            if place >= 0:
                calibrator = calibrator.scored(state, 2, part, place)
            seen += len(part)
    return calibrator


@given(st.lists(st.integers(0, 8000), max_size=6))
@settings(max_examples=8, deadline=None)
def test_no_bit_depends_on_how_messages_arrive(cuts: list[int]) -> None:
    sizes = [int(size) for size in np.diff([0, *sorted(cuts), 8000])]
    assert np.array_equal(calibrated(sizes).calibration.weights, calibrated([8000]).calibration.weights)


def test_p_is_uniform_and_merged_by_addition() -> None:
    one = calibrated([11_000])
    state, _ = learn_blocks(State.empty(6), X[:11_000], np.ones(11_000), CONFIG)
    model = model_of(state, 2)
    p = one.calibration.p_values(score(model, X[11_000:]), model.noise_variance).score
    assert abs(np.mean(p <= 0.1) - 0.1) < 0.04
    both = Calibrator.merged([one, calibrated([5000])]).calibration
    assert both.weight == pytest.approx(one.calibration.weight + calibrated([5000]).calibration.weight)
