"""What a worker learns with is compiled in an order: what the first messages need before it joins its group, and what
all later ones need, which takes longer than a group waits, from then on in a thread; with checkpoints, all before."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from numba.core import event

from streampca.commands import worker
from streampca.pca.blocked.jit import compiled
from streampca.pca.learning import LearningConfig
from streampca.settings import WorkerSettings
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stream import codec
from streampca.stream.formats import reader_of
from streampca.worker import kernels
from streampca.worker.kernels import Kernels
from streampca.worker.listener import Listener, WorkerStopping
from tests.kafka_broker import wait_until
from tests.stream.streams import checkpoint_of, fold_config, fold_of, vectors

PROGRAM = """
import gc, json, sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from streampca.worker.kernels import Kernels
from streampca.pca import learning
from streampca.pca.state import State

def compiled():
    found = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {f"{each.__module__}.{each.__name__}{found}" for each in found for found in each.signatures
            if each.__module__.startswith("streampca")}

def learn(state, until):
    while state.count < until:
        B = learning_config.next_block(state)
        state, _ = learning.learn(state, V[state.count : state.count + B], np.ones(B), learning_config)
    return state

dtype, center = sys.argv[1], sys.argv[2] == "True"
learning_config = learning.LearningConfig(20, 3, 5, center, dtype)
V = np.random.default_rng(0).standard_normal((learning_config.start + 3 * learning_config.block, 20)).astype(dtype)
told, kernels = [], Kernels(learning_config)
kernels.have_small()
told.append(compiled())
state = learn(State.empty(20, dtype), learning_config.start)
told.append(compiled() - told[0])
assert state.rank == learning_config.columns
kernels.begin_all()
while kernels.busy:
    pass
assert kernels.ready()
told.append(compiled())
learn(state, len(V))
told.append(compiled() - told[2])
print(json.dumps([sorted(names) for names in told]))
"""
SMALL = ("centring._weights", "centring.shares", "centring.about", "gauge.cholesky")


def named(name: str, found: list[str]) -> bool:
    return any(each.startswith(f"streampca.pca.{name}(") for each in found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("center", [True, False])
def test_nothing_is_left_to_compile_when_messages_come(dtype: str, center: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, dtype, str(center)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    small, of_first_block, all_, of_later_blocks = json.loads(done.stdout.splitlines()[-1])
    for name in SMALL:
        assert named(name, small) or (name == "centring.shares" and not center), name
    assert not named("blocks._learn", small)
    assert named("blocks._learn", all_)
    assert of_first_block == of_later_blocks == []


class JoiningError(Exception):
    """Where the group is joined."""


def refuse(*args: Any) -> Any:
    raise JoiningError


def put_together(store: Path) -> None:
    settings = WorkerSettings(topic="readings", dimensions=5, components=2, format="json", store=store)
    with pytest.raises(JoiningError):
        worker._put_together(settings, DirectoryStore(store), Listener(), Kernels(worker.learning_config_of(settings)))


def test_what_reads_the_format_is_ready_before_the_group_is_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[str] = []

    def recorded(name: str, *others: Any) -> Any:
        made.append(name)
        return reader_of(name, *others)

    monkeypatch.setattr(codec, "reader_of", recorded)
    monkeypatch.setattr(worker, "client_of", refuse)
    put_together(tmp_path)
    assert made == ["json"]


@pytest.mark.parametrize(
    ("learned", "done"), [(0, ["client", "small", "block begun"]), (9, ["client", "small", "block"])]
)
def test_what_is_had_before_the_group_is_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, learned: int, done: list[str]
) -> None:
    """Where nothing was learned yet, what the first messages need; else all, for the others can go on meanwhile."""
    order: list[str] = []
    main = threading.get_ident()
    had = threading.Event()

    def have_block(self: Kernels, state: Any) -> None:
        if threading.get_ident() == main:
            order.append("block")
        else:
            had.wait(20)

    def submit(self: Any, function: Callable[[Any], None], *args: Any) -> Any:
        order.append("block begun")
        return plain(self, function, *args)

    plain = ThreadPoolExecutor.submit
    monkeypatch.setattr(Kernels, "have_small", lambda self: order.append("small"))
    monkeypatch.setattr(Kernels, "_have_block", have_block)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    monkeypatch.setattr(worker, "client_of", lambda settings: order.append("client"))
    monkeypatch.setattr(worker, "reading_ahead", refuse)
    if learned:
        fold = fold_of(vectors(learned), fold_config())
        Checkpoints(DirectoryStore(tmp_path), "readings").save(checkpoint_of(fold, fold_config()))
    try:
        put_together(tmp_path)
    finally:
        had.set()
    assert order == done


RECIPE = LearningConfig(3, 2)


class Compilation:
    """Stands in for the learning of a block: is compiled, or loaded, as long as a test wants, and may fail."""

    def __init__(self, *, loads: bool = False, fails: Exception | None = None) -> None:
        self._loads, self._fails = loads, fails
        self.may_begin, self.began, self.end = threading.Event(), threading.Event(), threading.Event()
        self.may_begin.set()

    def __call__(self, state: Any, V: Any, *others: Any) -> Any:
        if len(V) == kernels._FIRST:
            return state, None
        assert self.may_begin.wait(20)
        if not self._loads:
            event.start_event("numba:compile", data={})
        self.began.set()
        assert self.end.wait(20)
        if not self._loads:
            event.end_event("numba:compile", data={})
        if self._fails:
            raise self._fails
        return state, None


@contextmanager
def under_way(monkeypatch: pytest.MonkeyPatch, compilation: Compilation) -> Iterator[Kernels]:
    monkeypatch.setattr(kernels.learning, "learn", compilation)
    own = Kernels(RECIPE)
    own.begin_all()
    try:
        assert compilation.began.wait(20)
        yield own
    finally:
        compilation.end.set()
        wait_until(lambda: not own.busy)


def test_what_is_compiled_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    compilation = Compilation()
    with structlog.testing.capture_logs() as said, under_way(monkeypatch, compilation) as own:
        assert own.busy
        assert not own.ready()
        assert [line["event"][:9] for line in said] == ["compiling"]
        own.notify(WorkerStopping("SIGTERM"))
        compilation.end.set()
        wait_until(own.ready)
        assert not own.busy
        own.notify(WorkerStopping("SIGTERM"))
    told = [(line["log_level"], line["event"][:9].rstrip()) for line in said]
    assert told == [("info", "compiling"), ("info", "waiting f"), ("info", "compiled")]
    assert said[2]["seconds"] >= 0


def test_whether_it_is_compiled_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    compilation = Compilation()
    compilation.may_begin.clear()
    monkeypatch.setattr(kernels.learning, "learn", compilation)
    own = Kernels(RECIPE)
    own.begin_all()
    with ThreadPoolExecutor(1) as asking:
        answer = asking.submit(own.ready)
        with pytest.raises(TimeoutError):
            answer.result(0.05)
        compilation.may_begin.set()
        try:
            assert not answer.result(20)
        finally:
            compilation.end.set()
    wait_until(own.ready)


def test_what_is_loaded_is_waited_for_and_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    compilation = Compilation(loads=True)
    with (
        structlog.testing.capture_logs() as said,
        under_way(monkeypatch, compilation) as own,
        ThreadPoolExecutor(1) as asking,
    ):
        own._known.set()  # as it is when the last has been done but not told
        answer = asking.submit(own.ready)
        event.start_event("numba:compile", data={})  # another's, in another thread
        event.end_event("numba:compile", data={})
        with pytest.raises(TimeoutError):
            answer.result(0.05)
        compilation.end.set()
        assert answer.result(20)
    assert said == []


@pytest.mark.parametrize("loads", [True, False])
def test_why_it_failed_is_raised_where_the_code_is_asked_for(monkeypatch: pytest.MonkeyPatch, loads: bool) -> None:
    compilation = Compilation(loads=loads, fails=MemoryError("no room for code"))
    with structlog.testing.capture_logs() as said, under_way(monkeypatch, compilation) as own:
        compilation.end.set()
        wait_until(lambda: not own.busy)
        for _ in range(2):
            with pytest.raises(MemoryError, match="no room for code"):
                own.ready()
    assert "compiled" not in [line["event"] for line in said]


def test_all_is_had_at_once_where_it_is_asked_for_so(monkeypatch: pytest.MonkeyPatch) -> None:
    compilation = Compilation()
    compilation.end.set()
    monkeypatch.setattr(kernels.learning, "learn", compilation)
    own = Kernels(RECIPE)
    own.have_all()
    assert own.ready()
    assert not own.busy
    assert compilation.began.is_set()


class Held(event.Listener):  # type: ignore[misc]
    """Counts compilations, and holds the first up, behind numba's lock."""

    def __init__(self) -> None:
        self.count, self.began, self.may_go_on = 0, threading.Event(), threading.Event()

    def on_start(self, event: Any) -> None:
        self.count += 1
        self.began.set()
        assert self.may_go_on.wait(20)

    def on_end(self, event: Any) -> None:
        pass


def test_who_calls_what_is_being_compiled_waits_and_nothing_is_compiled_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What we rely on of numba."""
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))

    @compiled
    def product(a: float, b: float) -> float:
        return a * b

    held = Held()
    with event.install_listener("numba:compile", held), ThreadPoolExecutor(2) as threads:
        first = threads.submit(product, 2.0, 3.0)
        assert held.began.wait(20)
        second = threads.submit(product, 4.0, 5.0)
        with pytest.raises(TimeoutError):
            second.result(0.05)
        held.may_go_on.set()
        assert (first.result(20), second.result(20)) == (6.0, 20.0)
    assert held.count == 1


STOPPED = """
import sys, threading
from numba.core import event
from streampca.worker.kernels import Kernels
from streampca.pca.learning import LearningConfig

kernels = Kernels(LearningConfig(3, 2))
kernels.begin_all()
assert not kernels.ready()
print("the end", flush=True)
"""


def test_a_process_that_ends_meanwhile_ends_in_order_and_keeps_the_code(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED]
    done = subprocess.run(
        command, env={"NUMBA_CACHE_DIR": str(tmp_path), "PATH": ""}, capture_output=True, text=True, timeout=120,
        check=False, cwd=Path(kernels.__file__).parents[1],
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "the end" in done.stdout
    assert list(tmp_path.rglob("blocks._learn*.nbc"))
