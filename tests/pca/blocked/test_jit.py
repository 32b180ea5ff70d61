"""Compiled functions are cached where a folder allows it, and work without a cache elsewhere."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import config

from streampca.pca.blocked import jit as module
from streampca.pca.blocked.jit import compiled


def product(a: float, b: float) -> float:
    return a * b


def test_code_is_cached_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    first, second = compiled(product), compiled(product)
    assert first(2.0, 3.0) == second(2.0, 3.0) == 6.0
    assert len(list(tmp_path.rglob("*.nbc"))) == 1
    assert sum(first.stats.cache_misses.values()) == 1  # type: ignore[attr-defined]
    assert sum(second.stats.cache_hits.values()) == 1  # type: ignore[attr-defined]


def test_processes_that_compile_at_the_same_time_share_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees an empty folder, compiles for its own type and writes; a third one loads both."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    one, other, third = compiled(product), compiled(product), compiled(product)
    one(2.0, 3.0)
    written = {path: path.read_bytes() for path in tmp_path.rglob("*.nb?")}
    for path in written:
        path.unlink()
    other(np.float32(2), np.float32(3))
    for path, content in written.items():  # by the first one, which had looked before the other wrote
        path.write_bytes(content)
    assert third(2.0, 3.0) == 6.0
    assert third(np.float32(0.1), np.float32(3)) == np.float32(0.1) * np.float32(3)
    assert sum(third.stats.cache_hits.values()) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", [b"", b"torn", bytes(4096)])
def test_a_function_works_where_its_file_is_damaged(
    damage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    compiled(product)(2.0, 3.0)
    (path,) = tmp_path.rglob("*.nbc")
    path.write_bytes(damage)
    assert compiled(product)(2.0, 3.0) == 6.0
    repaired = compiled(product)
    assert repaired(2.0, 3.0) == 6.0
    assert sum(repaired.stats.cache_hits.values()) == 1  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_function_is_compiled_again_when_any_module_beside_it_has_changed(tmp_path: Path) -> None:
    """The cached code contains functions of other modules, which were inlined."""
    for name, text in {"callee.py": CALLEE, "caller.py": CALLER}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    answers = [run_in(tmp_path)]
    (tmp_path / "callee.py").write_text(CALLEE.replace("x + 1", "x + 2.0"), encoding="utf-8")
    answers += [run_in(tmp_path), run_in(tmp_path)]
    assert answers == [["11.0", "0"], ["12.0", "0"], ["12.0", "1"]]


CALLEE = """
from streampca.pca.blocked.jit import compiled
@compiled
def callee(x):
    return x + 1
"""
CALLER = """
from callee import callee
from streampca.pca.blocked.jit import compiled
@compiled
def caller(x):
    return callee(x)
print(caller(10.0), sum(caller.stats.cache_hits.values()))
"""


def run_in(folder: Path) -> list[str]:
    done = subprocess.run([sys.executable, "caller.py"], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_function_works_where_the_folder_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert compiled(product)(2.0, 3.0) == 6.0


def test_a_function_works_when_the_folder_disappears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    function = compiled(product)
    for folder in (tmp_path / "cache").iterdir():
        folder.rmdir()
        folder.touch()
    assert function(2.0, 3.0) == 6.0


def test_a_function_works_where_numba_finds_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Files, "_locator_classes", ())
    function = compiled(product)
    assert function(2.0, 3.0) == 6.0
    assert function.stats.cache_path is None  # type: ignore[attr-defined]
