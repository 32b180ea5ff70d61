"""Checkpoint files: every value survives a round trip, and any damage is detected."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.errors import DamagedFileError, SettingsError
from streampca.fold import npz
from streampca.fold.checkpoint import FORMAT_VERSION, KIND, Checkpoint, decode, encode
from streampca.fold.event_time import EventTime
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.partitions import FIRST_BACKFILL
from streampca.fold.stats import FoldStats
from streampca.formats.record import LastRecord
from streampca.pca.state import State
from tests.errors import refusal
from tests.fold.streams import CONFIG, D, bits, fold_config, learn, make_checkpoint, make_fold, vectors
from tests.pca.streams import values_in, with_gaps

EXAMPLES = {
    "empty": (fold_config(), 0),
    "during warm-up": (fold_config(), 7),
    "after warm-up": (fold_config(half_life_seconds=9.0), 250),
    "nothing pending": (fold_config(), 20 + 64),
    "float32": (fold_config(dtype="float32", center=False), 250),
    "a factor": (fold_config(dimensions=300, factor=True), 250),
    "standardised": (fold_config(standardize=True), 250),
    "standardised, a factor": (fold_config(dimensions=30, standardize=True, factor=True), 250),
    "one dimension": (fold_config(dimensions=1, components=1, oversampling=0), 100),
}


def example(name: str) -> tuple[Fold, FoldConfig]:
    config, n = EXAMPLES[name]
    d = config.learning.dimensions
    fold = make_fold(vectors(n, d, dtype=config.learning.dtype), config, [10**12 + 7 * i for i in range(n)])
    return fold.reject(["undecodable", "too_large", "undecodable"], skipped=4).skip(n + 40), config


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_field_survives_a_round_trip_bit_for_bit(name: str, named: bool) -> None:
    fold, config = example(name)
    names = [f"sensor {i}" for i in range(config.learning.dimensions)] if named else None
    checkpoint = Checkpoint("a.topic_with-letters", "AbC-123", 42, fold, config.as_dict(), names=names)
    assert values_in(decode(encode(checkpoint))) == values_in(checkpoint)


finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**62)


@pytest.mark.slow
@given(
    stats=st.builds(
        FoldStats, counts, st.dictionaries(st.text(max_size=5), counts, max_size=3), counts, counts,
        finite, finite, finite, finite, counts, counts, counts,
    ),
    event_time=st.builds(EventTime, counts, st.lists(counts, max_size=62).map(tuple), counts),
    numbers=st.tuples(counts, finite.map(abs), finite.map(abs), counts, counts),
    words=st.tuples(st.text(max_size=9), st.text(max_size=9)),
    partition=counts,
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_counts_and_losses_survive_a_round_trip(
    stats: FoldStats, event_time: EventTime, numbers: Any, words: tuple[str, str], partition: int
) -> None:
    position, weight, variance, count, clipped = numbers
    state = replace(State.empty(5), weight=weight, total_variance=variance, count=count, clipped=clipped)
    fold = replace(Fold.empty(CONFIG.learning), position=position, state=state, event_time=event_time, stats=stats)
    checkpoint = Checkpoint(*words, partition, fold, CONFIG.as_dict())
    assert values_in(decode(encode(checkpoint))) == values_in(checkpoint)


def forged(header: Mapping[str, Any] = {}, arrays: Mapping[str, Any] = {}) -> bytes:
    """A file with altered content and a valid digest."""
    fold, config = example("after warm-up")
    header_before, arrays_before = npz.decode(bits(fold, config), KIND, FORMAT_VERSION)
    return npz.encode({**header_before, **header}, {**arrays_before, **arrays})


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_file_holds_the_pseudo_inverse_of_the_factor(name: str) -> None:
    fold, config = example(name)
    checkpoint = Checkpoint("topic", "", 0, fold, config.as_dict())
    _, arrays = npz.decode(encode(checkpoint), KIND, FORMAT_VERSION)
    exact = np.linalg.pinv(arrays["C"].astype(np.float64))
    assert arrays["C_pinv"].shape == exact.shape
    assert np.abs(arrays["C_pinv"] - exact).max(initial=0.0) <= 1e-3 * np.abs(exact).max(initial=1.0)


@pytest.mark.parametrize("name", ["C", "C_pinv", "mean", "pending", "pending_retention"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_arrays_with_non_finite_values_are_refused(name: str, value: float) -> None:
    array = npz.decode(forged(), KIND, FORMAT_VERSION)[1][name].copy()
    array.flat[-1] = value
    assert f"{name} holds values that are not finite" in refusal(DamagedFileError, decode, forged(arrays={name: array}))


@pytest.mark.parametrize(
    ("header", "arrays"),
    [
        ({}, {"missing": np.full(D, 1.1)}),
        ({}, {"missing": np.zeros(D - 1)}),
        ({}, {"missing": np.full(D, np.nan)}),
        ({}, {"known": np.full(D * (D + 1) // 2, -0.1)}),
        ({}, {"known": np.full(D * (D + 1) // 2, 1.1)}),
        ({}, {"known": np.ones(D - 1)}),
        ({}, {"mean": np.full(D, np.nan)}),
        ({}, {"pending": np.full((1, D), np.inf), "pending_retention": np.ones(1)}),
    ],
)
def test_damaged_arrays_of_a_fold_with_gaps_are_refused(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    config, V = fold_config(impute=True), vectors(500)
    V[170:] = with_gaps(V[170:], 0.3, 1)
    fields, intact = npz.decode(bits(make_fold(V, config), config), KIND, FORMAT_VERSION)
    assert "missing" in intact
    refusal(DamagedFileError, decode, npz.encode(fields | header, intact | arrays))


@pytest.mark.parametrize("name", ["standardised", "standardised, a factor"])
@pytest.mark.parametrize(
    ("array", "change"),
    [
        ("scale", lambda D: -D),
        ("scale", np.zeros_like),
        ("scale", lambda D: D[1:]),
        ("variances", lambda D: -np.ones_like(D)),
        ("variances", lambda D: D * np.nan),
    ],
)
def test_a_damaged_scale_is_refused(name: str, array: str, change: Any) -> None:
    fold, config = example(name)
    header, arrays = npz.decode(bits(fold, config), KIND, FORMAT_VERSION)
    assert ("variances" in arrays) == ("covariance" not in arrays)
    refusal(DamagedFileError, decode, npz.encode(header, arrays | {array: change(arrays["scale"])}))
    assert "fit neither each other nor the settings" in refusal(
        DamagedFileError, decode, npz.encode(header, {name: array for name, array in arrays.items() if name != "scale"})
    )


@pytest.mark.parametrize(
    "names",
    [["a", "b"], ["a", "b", "c", "d", "a"], ["a", "b", "c", "d", ""], [1, 2, 3, 4, 5], ["a", "b", "c", "d", "e" * 256]],
)
def test_damaged_names_are_refused(names: Any) -> None:
    assert "names" in refusal(DamagedFileError, decode, forged({"names": names}))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("C", 1e160), ("mean", -1e160), ("pending", 1e160), ("pending_retention", -1.0), ("pending_retention", 1e3),
        ("covariance", 1e307),
    ],
)  # fmt: skip
def test_numbers_whose_squares_overflow_are_refused(name: str, change: float) -> None:
    array = npz.decode(forged(), KIND, FORMAT_VERSION)[1][name] * change
    assert f"{name} holds values outside" in refusal(DamagedFileError, decode, forged(arrays={name: array}))


def test_a_covariance_with_a_product_above_its_variances_is_refused() -> None:
    array = npz.decode(forged(), KIND, FORMAT_VERSION)[1]["covariance"].copy()
    array[1] = 2 * array.max()
    assert "covariance holds values outside" in refusal(DamagedFileError, decode, forged(arrays={"covariance": array}))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponents", [(0, -6), (0, -9), (0, -11), (0, -14), (9, -9), (-9, -9)])
def test_checkpoints_of_ill_conditioned_data_can_be_loaded(dtype: str, exponents: tuple[int, int]) -> None:
    """Exact linear relations between sensors make columns of C that differ by ten orders of magnitude."""
    d, n = 8, 1500
    config = fold_config(dimensions=d, components=3, oversampling=3, dtype=dtype)
    random = np.random.default_rng(0)
    turn = np.linalg.qr(random.standard_normal((d, d)))[0]
    V = (random.standard_normal((n, d)) * np.logspace(*exponents, d) @ turn).astype(dtype)
    fold = Fold.empty(config.learning)
    for start in range(0, n, 50):
        fold, _ = learn(fold, V[start : start + 50], [-1] * 50, start + 50, config)
        decode(bits(fold, config))


@pytest.mark.slow
def test_another_process_writes_the_same_bytes() -> None:
    """With another hash seed, time zone and working directory."""
    fold, config = example("after warm-up")
    program = (
        "import hashlib; from tests.fold.test_checkpoint import bits, example;"
        "print(hashlib.sha256(bits(*example('after warm-up'))).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    other = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert other.stdout.strip() == hashlib.sha256(bits(fold, config)).hexdigest()


def saved(fold_config: FoldConfig) -> Checkpoint:
    return decode(encode(make_checkpoint(Fold.empty(fold_config.learning), fold_config, partition=3)))


def test_every_setting_that_affects_the_result_is_compared() -> None:
    values: dict[str, Any] = {
        "dimensions": 6, "components": 1, "oversampling": 2, "center": False, "dtype": "float32", "warm_up": 21,
        "half_life_messages": 9.0, "half_life_seconds": 0.1 + 0.2, "standardize": True,
    }  # fmt: skip
    others = {name: fold_config(**{name: value}) for name, value in values.items()} | {
        "format": replace(CONFIG, format="npy"),
        "field": replace(CONFIG, field="a"),
        "missing": fold_config(impute=True),
        "missing_values": fold_config(missing_values="-9999"),
        "where": replace(CONFIG, where="kind=cpu"),
    }
    assert set(others) | {"start"} == {*CONFIG.as_dict(), "missing_values", "where"}
    for name, other in others.items():
        saved(other).refuse_other_settings(other)
        assert f"{name}=" in refusal(SettingsError, saved(CONFIG).refuse_other_settings, other)


def test_a_checkpoint_has_missing_values_only_if_some_are_set() -> None:
    config = fold_config(missing_values="-9999, 5")
    assert "missing_values" not in CONFIG.as_dict()
    assert FoldConfig.from_dict(CONFIG.as_dict()) == CONFIG
    assert FoldConfig.from_dict(saved(config).settings) == config
    words = refusal(SettingsError, saved(config).refuse_other_settings, CONFIG)
    assert "missing_values=-9999, 5 (now None)" in words


def test_a_checkpoint_has_conditions_only_if_some_are_set_and_those_of_a_backfill_are_its_files() -> None:
    config = replace(CONFIG, where="kind=cpu")
    assert "where" not in CONFIG.as_dict()
    assert FoldConfig.from_dict(saved(config).settings) == config
    assert "where=kind=cpu (now None)" in refusal(SettingsError, saved(config).refuse_other_settings, CONFIG)
    replace(saved(config), partition=FIRST_BACKFILL).refuse_other_settings(CONFIG)


def test_names_and_their_order_must_agree_but_not_the_field_that_they_come_from() -> None:
    def config(field: str, names: str = "") -> FoldConfig:
        return replace(fold_config(), field=field, names=list(names) or None)

    def made_with(config: FoldConfig, partition: int = 0) -> Checkpoint:
        return replace(make_checkpoint(make_fold(vectors(3), config), config, partition), names=config.names)

    array, named, elsewhere = config("v"), config("a,b,c,d,e", "abcde"), config("x.a,x.b,x.c,x.d,x.e", "abcde")
    for then, now in [(named, elsewhere), (array, named), (named, array)]:
        assert made_with(then).adapt_to(now).fold.stats.learned == 3
    made_with(array, FIRST_BACKFILL).refuse_other_settings(config("w"))  # files hold the vectors elsewhere
    assert "field=v (now w)" in refusal(SettingsError, made_with(array).refuse_other_settings, config("w"))
    for other in ("edcba", "abcdx"):
        text = refusal(SettingsError, made_with(named).adapt_to, config("a,b,c,d,e", other))
        assert f"names=a, b, c, d, e (now {', '.join(other)})" in text


def test_names_change_no_other_bit_of_a_checkpoint() -> None:
    assert replace(CONFIG, names=list("abcde")).as_dict() == CONFIG.as_dict()
    assert FoldConfig.from_dict(CONFIG.as_dict(), list("abcde")) == replace(CONFIG, names=list("abcde"))


def test_a_checkpoint_that_has_learned_nothing_takes_the_settings_of_the_worker() -> None:
    before, now = fold_config(), replace(fold_config(dimensions=7, dtype="float32"), names=list("abcdefg"))

    def rejected(config: FoldConfig) -> Checkpoint:
        fold = Fold.empty(config.learning).at(2).skip(5).reject(["wrong_length"]).at(9)
        return replace(make_checkpoint(replace(fold, last=LastRecord(8, 2)), config, partition=3), names=config.names)

    reordered = replace(now, names=list("gfedcba"))
    for then in (before, reordered):
        assert encode(rejected(then).adapt_to(now)) == encode(rejected(now))
    unnamed = replace(now, names=None)
    assert encode(rejected(now).adapt_to(unnamed)) == encode(rejected(now))
