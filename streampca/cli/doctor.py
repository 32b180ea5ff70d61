"""`streampca doctor`: does the steps of the starts without changing anything, and checks what no start does."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from streampca.cli.console import console
from streampca.cli.doctor_topic import TopicChecks
from streampca.cli.member_start import MemberStart
from streampca.cli.options import Options, read_settings
from streampca.cli.transform_start import TransformStart
from streampca.consumer_group.step import NotYetError, Step
from streampca.errors import StreampcaError
from streampca.settings.base import Settings
from streampca.settings.commands import TransformSettings, WorkerSettings
from streampca.sources.client_connection import one_line
from streampca.stores.choice import open_store

_TIMEOUT_S = 12.0  # of a step: a file server may hang
PASSED, FAILED, SKIPPED = "✓", "✗", "–"
_STYLES = {PASSED: "", FAILED: "red", SKIPPED: "dim"}


class Line(NamedTuple):
    """What is printed of a step: its finding, the error with its remedy, or why it was skipped."""

    mark: str
    name: str
    text: str


def run(options: Options) -> int:
    """Print a line for each step of the roles that are set up; return the exit code. Raises `SettingsError`."""
    printed: set[Line] = set()
    with contextlib.ExitStack() as opened:
        starts = _starts_of(options, opened)
        for start in starts:
            opened.enter_context(start.opened)
        for line in lines_of(steps_of(starts)):
            if line not in printed:  # else both roles have found it, such as the topic
                console().print(f"{line.mark} {line.name}: {line.text}", style=_STYLES[line.mark])
                printed.add(line)
    failed = sum(line.mark == FAILED for line in printed)
    failures = "1 check failed" if failed == 1 else f"{failed} checks failed"
    console().print(failures if failed else "all checks passed", style="bold")
    return 1 if failed else 0


def _starts_of(options: Options, opened: contextlib.ExitStack) -> list[MemberStart]:
    """The starts of the roles whose settings are set; `opened` ends the reading of settings."""
    starts: list[MemberStart] = []
    has_transform = _is_set(TransformSettings, ["output_topic"], options)
    if not has_transform or _is_set(WorkerSettings, ["dimensions", "components"], options):
        from streampca.cli.worker_start import WorkerStart  # here: it imports numba, which takes a second

        worker = opened.enter_context(read_settings("WorkerSettings", options))
        starts.append(WorkerStart(worker, open_store(worker.store)))
    if has_transform:
        transform = opened.enter_context(read_settings("TransformSettings", options))
        starts.append(TransformStart(transform, open_store(transform.store)))
    return starts


def _is_set(kind: type[Settings], names: Collection[str], options: Options) -> bool:
    return any(setting.origin != "missing" for setting in kind.explain(**options)[0] if setting.name in names)


def steps_of(starts: Sequence[MemberStart]) -> list[Step]:
    """The steps of the starts, and the checks that no start does."""
    first, *others = starts
    checks = TopicChecks(first)
    steps = [*first.steps(), *checks.steps()]
    for start in others:
        steps += [*start.steps(), checks.lag_of(start)]
    return steps


def lines_of(steps: Iterable[Step]) -> Iterator[Line]:
    """Do each step, or its check if it has one, unless a step that it needs has not passed."""
    has_passed: dict[str, bool] = {}
    for step in steps:
        missing = [name for name in step.after if not has_passed[name]]
        if missing:
            line = Line(SKIPPED, step.name, f"skipped, because it needs: {', '.join(missing)}")
        else:
            line = _done_in_time(step.name, step.check or step.attempt)
        has_passed[step.name] = line.mark == PASSED
        yield line


def _done_in_time(name: str, do: Callable[[], str]) -> Line:
    outcomes: list[Line] = []
    thread = threading.Thread(target=lambda: outcomes.append(_done(name, do)), daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return outcomes[0] if outcomes else Line(FAILED, name, f"no answer within {_TIMEOUT_S:.0f} s")


def _done(name: str, do: Callable[[], str]) -> Line:
    try:
        return Line(PASSED, name, do())
    except NotYetError as error:
        return Line(SKIPPED, name, f"a start waits: {one_line(error)}")
    except (StreampcaError, TimeoutError) as error:
        return Line(FAILED, name, one_line(error))
    except Exception as error:
        return Line(FAILED, name, f"unexpected {type(error).__name__}: {one_line(error)}")
