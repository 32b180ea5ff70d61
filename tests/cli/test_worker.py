"""A worker compiles all its kernels before it joins the group."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from numba.core.caching import UserProvidedCacheLocator
from structlog.typing import EventDict

from streampca.cli import member_start, worker_start
from streampca.cli.worker_config import create_worker_config
from streampca.cli.worker_start import WorkerStart
from streampca.consumer_group.process import Process
from streampca.errors import SettingsError, StreampcaError
from streampca.formats import codec, reader_of
from streampca.pca import compilation
from streampca.pca.blocked import centring
from streampca.pca.learning import LearningConfig
from streampca.process.start import PreparedProcess, ThreadFailures
from streampca.settings.commands import WorkerSettings
from streampca.stores.directory import DirectoryStore
from tests.command_line import output_of
from tests.errors import refusal
from tests.in_memory import MemorySource, MemoryTopic
from tests.members import make_member

# Prints the compiled functions before learning, and those that were added while vectors were learned and merged.
LIST_COMPILED = """
import gc, json, sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from streampca.pca import learning
from streampca.pca.axes import make_model
from streampca.pca.compilation import compile_learning_functions
from streampca.pca.merge import StateMerger
from streampca.pca.state import State

def list_compiled():
    functions = [f for f in gc.get_objects() if isinstance(f, Dispatcher) and f.__module__.startswith("streampca")]
    return {f"{f.__module__}.{f.__name__}{signature}" for f in functions for signature in f.signatures}

dtype, center, impute, d = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "True", int(sys.argv[4])
config = learning.LearningConfig(
    d, 3, None, center, dtype, impute=impute, standardize=d >= 30, factor=d == 300
)
compile_learning_functions(config)
before = list_compiled()
sizes = (config.first_block_size, 256, 18 * 256, 1024, 7)
V = np.random.default_rng(0).standard_normal((sum(sizes), d)).astype(dtype)
if impute:
    V[::5, 3] = np.nan
state = State.empty(d, dtype)
start = 0
for size in sizes:
    state, _ = learning.learn(state, V[start : start + size], np.full(size, 0.999), config)
    start += size
merger = StateMerger(config.columns)
merger.add(state)
merger.add(state, 0.5)
make_model(merger.state(config.columns, dtype), 3, None)
print(json.dumps([sorted(before), sorted(list_compiled() - before)]))
"""


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("temp,hum", ["temp", "hum"]), ("in.temp, out.temp", ["in.temp", "out.temp"]), ("a.`x.y`,a.z", ["x.y", "z"]),
        ("", None), ("a.vector", None), ("a,b,c", None),
    ],
)  # fmt: skip
def test_dimensions_are_named_by_the_paths_of_their_fields(field: str, names: list[str] | None) -> None:
    config = create_worker_config(WorkerSettings(topic="t", dimensions=2, components=1, field=field))
    assert config.fold.names == names
    assert config.fold.as_dict()["field"] == field


@pytest.mark.parametrize(("field", "d"), [(f"a,{'b' * 256}", 2), ("`a.b`,a.b,b", 3)], ids=["long", "equal"])
def test_long_or_equal_names_of_dimensions_are_refused(field: str, d: int) -> None:
    assert "field: names must differ and have at most 255 characters" in refusal(
        SettingsError, create_worker_config, WorkerSettings(topic="t", dimensions=d, components=1, field=field)
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("d", "center"), [(20, True), (20, False), (30, True), (300, True)])
def test_nothing_is_compiled_or_loaded_while_learning(dtype: str, d: int, center: bool) -> None:
    impute = center  # so that most cases have missing entries
    before, added = json.loads(output_of(LIST_COMPILED, dtype, str(center), str(impute), str(d)))
    assert any("block._learn" in function for function in before)
    assert any("filling.fill" in function for function in before) == impute
    assert added == []


# Prints how often kernels were compiled.
COUNT_COMPILATIONS = """
from streampca.pca.compilation import compile_learning_functions
from streampca.pca.learning import LearningConfig
compiled = []
compile_learning_functions(LearningConfig(5, 2), lambda: compiled.append(1))
print(len(compiled))
"""


def test_only_the_first_start_compiles(tmp_path: Path) -> None:
    """The first start finds all kernels but one in its cache, so that it takes seconds."""
    compilation.compile_learning_functions(LearningConfig(5, 2))
    copy = tmp_path / UserProvidedCacheLocator.get_suitable_cache_subpath(centring.__file__)
    cache = centring._compute_weights.stats.cache_path  # type: ignore[attr-defined]
    shutil.copytree(cache, copy, ignore=shutil.ignore_patterns("*.pyc", "centring._compute_weights-*"))
    assert [output_of(COUNT_COMPILATIONS, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)] == ["1", "0"]


class MistakeError(StreampcaError):
    """Raised by the step after the kernels."""


def test_kernels_are_compiled_before_the_worker_joins_and_after_steps_that_may_fail_early(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logs: list[EventDict]
) -> None:
    order: list[str] = []
    settings = WorkerSettings(topic="readings", dimensions=5, components=2, format="json", store=tmp_path)
    process = Process(make_member(), PreparedProcess(None, ThreadFailures()), spans=None)

    def create_client(settings: Any) -> Any:
        order.append("broker")
        return MemorySource(MemoryTopic(1, "readings"))

    def read_committed(*args: Any) -> Any:
        order.append("group")
        raise MistakeError

    def compile_learning_functions(config: Any, on_compile: Any) -> None:
        order.append("kernels")
        on_compile()

    def create_reader(name: str, *others: Any, **options: Any) -> Any:
        order.append(f"reader of {name}")
        return reader_of(name, *others, **options)

    monkeypatch.setattr(codec, "reader_of", create_reader)
    monkeypatch.setattr(member_start, "create_client", create_client)
    monkeypatch.setattr(MemorySource, "committed", read_committed)
    monkeypatch.setattr(worker_start, "compile_learning_functions", compile_learning_functions)
    refusal(MistakeError, process.do_steps, WorkerStart(settings, DirectoryStore(tmp_path)).steps())
    assert order == ["reader of json", "broker", "kernels", "group"]
    assert [line["event"] for line in logs if line["log_level"] != "debug"] == ["compiling kernels"]
