"""Compiled functions: their code is kept where that can be done, and they work where it cannot."""

from pathlib import Path

import pytest
from numba import config

from streampca.pca import compiled as module
from streampca.pca.compiled import compiled


def product(a: float, b: float) -> float:
    return a * b


def test_code_is_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    first, second = compiled(product), compiled(product)
    assert first(2.0, 3.0) == second(2.0, 3.0) == 6.0
    assert len(list(tmp_path.rglob("*.nbc"))) == 1
    assert sum(first.stats.cache_misses.values()) == 1  # type: ignore[attr-defined]
    assert sum(second.stats.cache_hits.values()) == 1  # type: ignore[attr-defined]


def test_a_folder_that_cannot_be_used_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert compiled(product)(2.0, 3.0) == 6.0


def test_a_folder_that_goes_away_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    function = compiled(product)
    for folder in (tmp_path / "cache").iterdir():
        folder.rmdir()
        folder.touch()
    assert function(2.0, 3.0) == 6.0


def test_where_numba_knows_no_folder_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Files, "_locator_classes", ())
    function = compiled(product)
    assert function(2.0, 3.0) == 6.0
    assert function.stats.cache_path is None  # type: ignore[attr-defined]
