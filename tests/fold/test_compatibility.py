"""Checkpoints that may be continued, and those that are refused."""

from dataclasses import replace
from typing import Any

import pytest

from streampca.errors import SettingsError
from streampca.fold.checkpoint import Checkpoint, decode, encode
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.record import LastRecord
from tests.fold.streams import checkpoint_of, fold_config, fold_of, vectors


def saved(fold_config: FoldConfig) -> Checkpoint:
    return decode(encode(checkpoint_of(Fold.empty(fold_config.learning), fold_config, partition=3)))


def test_every_setting_that_affects_the_result_is_compared() -> None:
    config = fold_config()
    others: dict[str, Any] = {
        "dimensions": 6, "components": 1, "oversampling": 2, "center": False, "dtype": "float32", "warm_up": 21,
    }  # fmt: skip
    shapes = {name: fold_config(**{name: value}) for name, value in others.items()}
    shapes |= {
        "half_life_messages": fold_config(half_life_messages=9.0),
        "half_life_seconds": fold_config(half_life_seconds=0.1 + 0.2),
        "format": replace(config, format="npy"),
        "field": replace(config, field="a"),
        "missing": fold_config(impute=True),
    }
    assert set(shapes) | {"start"} == set(config.as_dict())
    for name, other in shapes.items():
        saved(other).refuse_other_settings(other)
        with pytest.raises(SettingsError, match=f"{name}="):
            saved(config).refuse_other_settings(other)


def test_a_checkpoint_that_has_learned_nothing_is_given_the_settings() -> None:
    before, now = fold_config(), fold_config(dimensions=7, dtype="float32")

    def rejected(config: FoldConfig) -> Checkpoint:
        fold = Fold.empty(config.learning).at(2).skip(5).reject(["wrong_length"]).at(9).after(LastRecord(8, 2))
        return checkpoint_of(fold, config, partition=3)

    assert encode(rejected(before).with_settings(now)) == encode(rejected(now))


def test_a_checkpoint_that_has_learned_is_refused() -> None:
    config = fold_config()
    learned = checkpoint_of(fold_of(vectors(3), config), config)
    assert learned.with_settings(config) is learned
    with pytest.raises(SettingsError, match="dimensions=5 \\(now 7\\)"):
        learned.with_settings(fold_config(dimensions=7))
