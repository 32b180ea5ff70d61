"""`streampca doctor`: does the steps of the starts without changing anything, and checks what no start checks."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from streampca.cli.console import console
from streampca.cli.doctor_topic import TopicChecks
from streampca.cli.member_start import MemberStart
from streampca.cli.options import Options, configure_log
from streampca.cli.transform_start import TransformStart
from streampca.consumer_group.step import NotYetError, Step
from streampca.errors import StreampcaError
from streampca.settings.base import Settings
from streampca.settings.commands import TransformSettings, WorkerSettings
from streampca.sources.broker_errors import one_line
from streampca.stores.choice import open_store

_TIMEOUT_S = 12.0  # of a step: a file server may hang
PASSED, FAILED, SKIPPED = "✓", "✗", "–"
_STYLES = {PASSED: "", FAILED: "red", SKIPPED: "dim"}


class Line(NamedTuple):
    """The line that is printed about a step."""

    mark: str  # PASSED, FAILED or SKIPPED
    step: str  # its name
    text: str  # what the step found, the error with its remedy, or why the step was skipped


def run(options: Options) -> int:
    """Check whether a worker, a member of transform, or both could start. Return the exit code: 1 if a check failed."""
    configure_log(options)
    starts = _create_starts(options)
    printed: set[Line] = set()
    with ExitStack() as opened:
        for start in starts:
            opened.enter_context(start.opened)
        for line in check_steps(list_steps(starts)):
            if line not in printed:  # both starts have some steps in common
                console().print(f"{line.mark} {line.step}: {line.text}", style=_STYLES[line.mark])
                printed.add(line)
    failed_count = sum(line.mark == FAILED for line in printed)
    if failed_count == 0:
        console().print("all checks passed", style="bold")
        return 0
    console().print("1 check failed" if failed_count == 1 else f"{failed_count} checks failed", style="bold")
    return 1


def _create_starts(options: Options) -> list[MemberStart]:
    """Create the starts of those roles, worker and transform, that are set up.

    If neither is, create a worker's start, so that an error names the missing settings.
    """
    starts: list[MemberStart] = []
    has_transform = _is_any_given(["output_topic"], TransformSettings, options)
    has_worker = _is_any_given(["dimensions", "components"], WorkerSettings, options)
    if has_worker or not has_transform:
        from streampca.cli.worker_start import WorkerStart  # here: it imports numba, which takes a second

        worker = WorkerSettings.read(**options)
        starts.append(WorkerStart(worker, open_store(worker.store)))
    if has_transform:
        transform = TransformSettings.read(**options)
        starts.append(TransformStart(transform, open_store(transform.store)))
    return starts


def _is_any_given(names: Collection[str], settings_class: type[Settings], options: Options) -> bool:
    """Return whether an option, the environment or the file gives one of these settings."""
    settings, _ = settings_class.explain(**options)
    return any(setting.is_given for setting in settings if setting.name in names)


def list_steps(starts: Sequence[MemberStart]) -> list[Step]:
    """Return the steps of each member's start, followed by the checks that only the command `doctor` makes.

    The topic is checked once, after the steps of the first member.
    """
    first = starts[0]
    checks = TopicChecks(first)
    steps = [*first.steps(), *checks.steps()]  # `checks.steps` checks the topic and the first member
    for start in starts[1:]:
        steps += start.steps()
        steps += checks.list_member_steps(start)
    return steps


def check_steps(steps: Iterable[Step]) -> Iterator[Line]:
    """Do or check each step, and yield a line about it. A step is skipped if a step that it uses has not passed."""
    has_passed: dict[str, bool] = {}  # by the name of the step; of two steps with one name, the later counts
    for step in steps:
        not_passed = [name for name in step.after if not has_passed[name]]
        if not_passed:
            line = Line(SKIPPED, step.name, f"skipped, because it needs: {', '.join(not_passed)}")
        else:
            # If the attempt writes or takes long, the step has a `check`, which is done instead and writes nothing.
            action = step.check or step.attempt
            line = _do_within_timeout(step.name, action)
        has_passed[step.name] = line.mark == PASSED
        yield line


def _do_within_timeout(name: str, attempt: Callable[[], str]) -> Line:
    """Do a step in a thread, and return the line about it. If it takes too long, the thread is left alone."""
    lines: list[Line] = []

    def add_line() -> None:
        lines.append(_do_step(name, attempt))

    thread = threading.Thread(target=add_line, daemon=True)  # a hanging step must not keep the process alive
    thread.start()
    thread.join(_TIMEOUT_S)
    return lines[0] if lines else Line(FAILED, name, f"no answer within {_TIMEOUT_S:.0f} s")


def _do_step(name: str, attempt: Callable[[], str]) -> Line:
    """Do a step, and return the line about it. `attempt` returns what it found, in a sentence."""
    try:
        return Line(PASSED, name, attempt())
    except NotYetError as error:  # for example, no model was published yet: a member that starts would wait for it
        return Line(SKIPPED, name, f"a start waits: {one_line(error)}")
    except (StreampcaError, TimeoutError) as error:
        return Line(FAILED, name, one_line(error))
    except Exception as error:
        return Line(FAILED, name, f"unexpected {type(error).__name__}: {one_line(error)}")
