"""Whatever a worker learns with is compiled before it joins its group: compiling takes longer than a group waits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streampca.commands import worker
from streampca.listening import Listener
from streampca.settings import WorkerSettings
from streampca.stores.directory import DirectoryStore
from streampca.stream import codec
from streampca.stream.formats import reader_of

PROGRAM = """
import gc, json, sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from streampca.commands.worker import compile_kernels
from streampca.pca import learning
from streampca.pca.state import State

def compiled():
    found = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {f"{each.__module__}.{each.__name__}{found}" for each in found for found in each.signatures
            if each.__module__.startswith("streampca")}

dtype, center = sys.argv[1], sys.argv[2] == "True"
recipe = learning.Recipe(20, 3, 5, center, dtype)
compile_kernels(recipe)
before = compiled()
V = np.random.default_rng(0).standard_normal((recipe.start + 3 * recipe.block, 20)).astype(dtype)
state = State.empty(20, dtype)
while state.count < len(V):
    B = recipe.next_block(state)
    state, _ = learning.learn(state, V[state.count : state.count + B], np.ones(B), recipe)
print(json.dumps([sorted(before), sorted(compiled() - before)]))
"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("center", [True, False])
def test_nothing_is_left_to_compile_when_messages_come(dtype: str, center: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, dtype, str(center)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    early, late = json.loads(done.stdout)
    for name in ("blocks._learn", "centring._weights", "centring.about", "gauge.cholesky"):
        assert any(each.startswith(f"streampca.pca.{name}(") for each in early), name
    assert late == []


class JoiningError(Exception):
    """Where the group is joined."""


def test_what_reads_the_format_is_ready_before_the_group_is_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[str] = []

    def recorded(name: str, *others: Any) -> Any:
        made.append(name)
        return reader_of(name, *others)

    def join(*args: Any) -> Any:
        raise JoiningError

    monkeypatch.setattr(codec, "reader_of", recorded)
    monkeypatch.setattr(worker, "client_of", join)
    settings = WorkerSettings(topic="t", dimensions=8, components=2, format="json")
    with pytest.raises(JoiningError):
        worker._put_together(settings, DirectoryStore(tmp_path), Listener())
    assert made == ["json"]
