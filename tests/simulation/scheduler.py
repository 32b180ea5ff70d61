"""Virtual time, processes and threads of the simulation: greenlets in one thread, of which one runs at a time.

A thread runs until its next call (of the disk, the cluster, a condition, a future). There it waits for a moment of
virtual time, which the seed draws, and others run meanwhile. So the seed decides every interleaving, and a run can be
repeated. A process can be killed or paused at any call, with all its threads.
"""

import heapq
import math
from collections.abc import Callable
from random import Random

from greenlet import getcurrent, greenlet

from streampca.process.watchdog import HANG_S

_LATENCY_S, _SLOW_S = 0.01, 0.5  # longest time that a call takes normally, and in a slow process


class KilledError(BaseException):
    """The process is dead: every call of its threads raises this, so that no clean-up has an effect."""


class Task:
    """A thread of a process."""

    def __init__(self, process: "Process", run: Callable[[], object]) -> None:
        self.process, self.generation, self._waiting = process, 0, list["Task"]()
        self.ended = True  # or not begun
        self.due = math.inf  # when it must have ticked again
        self.greenlet = greenlet(lambda: self._run(run), parent=process.scheduler.hub)

    def _run(self, run: Callable[[], object]) -> None:
        try:
            run()
        except KilledError:
            pass
        except BaseException as error:
            self.process.errors.append(error)
        finally:
            self.ended = True
            for task in self._waiting:
                self.process.scheduler.wake(task)

    def start(self) -> None:
        self.ended = False
        self.process.scheduler.wake(self)

    def join(self, timeout: float | None = None) -> None:
        scheduler = self.process.scheduler
        deadline = scheduler.now + timeout if timeout is not None else math.inf
        while not self.ended and scheduler.now < deadline:
            self._waiting.append(scheduler.current)
            scheduler.suspend(deadline)

    def is_alive(self) -> bool:
        return not self.ended


class Scheduler:
    """Runs tasks and actions in the order of their virtual times."""

    def __init__(self, random: Random) -> None:
        self.now, self.random, self.hub, self.steps = 0.0, random, getcurrent(), 0
        self._heap: list[tuple[float, int, Task | Callable[[], object], int]] = []
        self._pushed = 0
        self._current: Task | None = None

    @property
    def current(self) -> Task:
        """The running task. None runs while a dead process is cleared away: its clean-up must have no effect."""
        if self._current is None:
            raise KilledError
        return self._current

    def runs(self, process: "Process") -> bool:
        return self._current is not None and self._current.process is process

    def tick(self, within_s: float | None = None) -> None:
        """As `streampca.process.watchdog.tick`."""
        self.current.due = self.now + (within_s or HANG_S)

    def forget(self) -> None:
        """As `streampca.process.watchdog.forget`."""
        self.current.due = math.inf

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Call this function at a time, outside all tasks."""
        self._push(when, act, 0)

    def wake(self, task: Task) -> None:
        """Let a suspended task continue now."""
        self._push(self.now, task, task.generation)

    def suspend(self, until: float = math.inf) -> None:
        """Let others run, until the current task is woken up or the time has come."""
        task = self.current
        if not task.process.alive:
            raise KilledError
        if until < math.inf:
            self._push(until, task, task.generation)
        self.hub.switch()
        if not task.process.alive:
            raise KilledError

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.suspend(until)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Run everything that happens before a time, or until nothing is left or `done`."""
        while self._heap and self._heap[0][0] <= until and not done():
            when, _, what, generation = heapq.heappop(self._heap)
            if isinstance(what, Task):
                self._continue(when, what, generation)
            else:
                self.now = max(self.now, when)
                what()
        if not self._heap or self._heap[0][0] > until:
            self.now = max(self.now, until)

    def _continue(self, when: float, task: Task, generation: int) -> None:
        if task.ended or task.generation != generation or not task.process.alive:
            return
        if task.process.paused_until > when:
            self._push(task.process.paused_until, task, generation)
            return
        self.now, self._current = max(self.now, when), task
        task.generation += 1
        self.steps += 1
        task.greenlet.switch()
        self._current = None

    def _push(self, when: float, what: Task | Callable[[], object], generation: int) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (when, self._pushed, what, generation))


class Process:
    """Threads that live and die together. `on_end` is called when it has ended, by itself or killed."""

    def __init__(self, scheduler: Scheduler, on_end: Callable[["Process"], object] = lambda process: None) -> None:
        self.scheduler, self._on_end = scheduler, on_end
        self.alive, self.paused_until, self.slow_until, self.hangs = True, 0.0, 0.0, False
        self.errors: list[BaseException] = []  # that ended a thread
        self.traps: list[tuple[str, Callable[[], object]]] = []  # what to do at the next call of that name
        self._tasks: list[Task] = []

    @property
    def is_running(self) -> bool:
        """Whether it is neither dead nor paused."""
        return self.alive and self.paused_until <= self.scheduler.now

    @property
    def is_overdue(self) -> bool:
        """Whether a thread of it should have ticked."""
        return self.is_running and any(task.due < self.scheduler.now for task in self._tasks if not task.ended)

    def thread(self, run: Callable[[], object]) -> Task:
        """A thread that is to be started."""
        self._tasks.append(task := Task(self, run))
        return task

    def start(self, run: Callable[[], object]) -> None:
        self.thread(run).start()

    def main(self, run: Callable[[], object]) -> None:
        """Start the main thread; the process ends with it."""

        def run_to_the_end() -> None:
            try:
                run()
            finally:
                self.kill()

        self.start(run_to_the_end)

    def call(self, name: str) -> None:
        """A call that takes a moment, during which anything may happen to the process."""
        scheduler = self.scheduler
        if not self.alive:
            raise KilledError
        for place, (at, act) in enumerate(self.traps):
            if at == name:
                del self.traps[place]
                act()
                break
        scheduler.sleep(scheduler.random.random() * (_SLOW_S if scheduler.now < self.slow_until else _LATENCY_S))

    def kill(self) -> None:
        """End it now, as by SIGKILL."""
        if self.alive:
            self.alive = False
            self.scheduler.at(self.scheduler.now, self._bury)

    def hang(self) -> None:
        """Let the running call of the process never return."""
        if self.scheduler.runs(self):
            self.hangs = True
            while True:
                self.scheduler.suspend()

    def pause(self, seconds: float) -> None:
        """Let it do nothing for this time, as by SIGSTOP."""
        self.paused_until = max(self.paused_until, self.scheduler.now + seconds)

    def _bury(self) -> None:
        for task in self._tasks:
            if not task.ended and task.greenlet:
                task.greenlet.throw(KilledError)
            task.ended = True
        self._on_end(self)
