"""`streampca doctor`: checks everything that a worker needs and, with an output topic, what transform needs."""

import threading
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from streampca.commands.doctor_topic import Check, TopicChecks
from streampca.commands.doctor_transform import TransformChecks
from streampca.commands.doctor_worker import WorkerChecks
from streampca.commands.logged import with_logging
from streampca.commands.printing import console
from streampca.errors import StreampcaError
from streampca.settings import ConsumerSettings, TransformSettings, WorkerSettings

_TIMEOUT_S = 12.0  # of a check: a file server may hang

S = TypeVar("S", bound=ConsumerSettings)


def run(config: Path | None, **options: Any) -> int:
    """Print a line for each check of the roles that are set up; return the exit code. Raises `SettingsError`."""
    transform = _read(TransformSettings, ("output_topic",), config, options)
    worker = _read(WorkerSettings, ("dimensions", "components") if transform else (), config, options)
    out = console()
    roles: list[ConsumerSettings] = [settings for settings in (worker, transform) if settings]
    failed = 0
    with closing(TopicChecks(roles[0])) as topic:
        checks = WorkerChecks(worker, topic).checks() if worker else []
        if transform:
            checks += TransformChecks(transform, topic).checks(alone=worker is None)
        for name, check in checks:
            mark, text = _outcome(check)
            failed += mark == "✗"
            out.print(f"{mark} {name}: {text}", style={"✗": "red", "–": "dim"}.get(mark, ""))
    failures = "1 check failed" if failed == 1 else f"{failed} checks failed"
    out.print(failures if failed else "all checks passed", style="bold")
    return 1 if failed else 0


def _read(kind: type[S], some: Collection[str], config: Path | None, options: Mapping[str, Any]) -> S | None:
    """The settings; None if of `some` none is given."""
    own = {name: value for name, value in options.items() if name in kind.model_fields}
    origins = {effective.name: effective.origin for effective in kind.explain(config, **own)[0]}
    if some and all(origins[name] == "missing" for name in some):
        return None
    return with_logging(kind.read(config, **own))


def _outcome(check: Check) -> tuple[str, str]:
    """A mark and a text: the finding, the remedy, or why it was not checked."""
    outcomes: list[tuple[str, str]] = []

    def attempt() -> None:
        try:
            text = check()
            outcomes.append(("–", "skipped, because an earlier check failed") if text is None else ("✓", text))
        except StreampcaError as error:
            outcomes.append(("✗", " ".join(str(error).split())))
        except Exception as error:
            outcomes.append(("✗", f"unexpected {type(error).__name__}: {' '.join(str(error).split())}"))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return outcomes[0] if outcomes else ("✗", f"no answer within {_TIMEOUT_S:.0f} s")
