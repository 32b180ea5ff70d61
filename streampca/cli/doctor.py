"""`streampca doctor`: checks everything that a worker needs and, with an output topic, what transform needs."""

import threading
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from streampca.cli.console import console
from streampca.cli.doctor_roles import TransformChecks, WorkerChecks
from streampca.cli.doctor_topic import Check, SkippedError, TopicChecks
from streampca.errors import StreampcaError
from streampca.process import logs
from streampca.process.blas import kernels
from streampca.settings.consumer import ConsumerSettings
from streampca.settings.transform import TransformSettings
from streampca.settings.worker import WorkerSettings

_TIMEOUT_S = 12.0  # of a check: a file server may hang

S = TypeVar("S", bound=ConsumerSettings)


def run(config: Path | None, **options: Any) -> int:
    """Print a line for each check of the roles that are set up; return the exit code. Raises `SettingsError`."""
    transform = _read(TransformSettings, ("output_topic",), config, options)
    worker = _read(WorkerSettings, ("dimensions", "components") if transform else (), config, options)
    out = console()
    failed = 0
    roles = [settings for settings in (worker, transform) if settings]
    with closing(TopicChecks(roles[0])) as topic:
        for name, check in checks_of(worker, transform, topic):
            mark, text = _outcome(check)
            failed += mark == "✗"
            out.print(f"{mark} {name}: {text}", style={"✗": "red", "–": "dim"}.get(mark, ""))
    failures = "1 check failed" if failed == 1 else f"{failed} checks failed"
    out.print(failures if failed else "all checks passed", style="bold")
    return 1 if failed else 0


def checks_of(
    worker: WorkerSettings | None, transform: TransformSettings | None, topic: TopicChecks
) -> list[tuple[str, Check]]:
    """Names and checks of the roles, in order: later ones need the earlier ones."""
    of_worker = WorkerChecks(worker, topic) if worker else None
    of_transform = TransformChecks(transform, topic) if transform else None
    roles = [role for role in (of_worker, of_transform) if role]
    return [
        ("matrix kernels", kernels),
        *([("store", of_worker.store)] if of_worker else []),
        ("broker", topic.broker),
        ("topic", topic.topic),
        ("dead-letter topic", topic.dead_letter_topic),
        *(check for role in roles for check in role.checks()),
        ("schema registry", topic.registry),
        ("newest record", roles[0].newest_record),
    ]


def _read(kind: type[S], some: Collection[str], config: Path | None, options: Mapping[str, Any]) -> S | None:
    """The settings; None if of `some` none is given."""
    origins = {effective.name: effective.origin for effective in kind.explain(config, **options)[0]}
    if some and all(origins[name] == "missing" for name in some):
        return None
    settings = kind.read(config, **options)
    logs.configure(settings.log_level)
    return settings


def _outcome(check: Check) -> tuple[str, str]:
    """A mark and a text: the finding, the remedy, or why it was not checked."""
    outcomes: list[tuple[str, str]] = []

    def attempt() -> None:
        try:
            outcomes.append(("✓", check()))
        except SkippedError:
            outcomes.append(("–", "skipped, because an earlier check failed"))
        except StreampcaError as error:
            outcomes.append(("✗", " ".join(str(error).split())))
        except Exception as error:
            outcomes.append(("✗", f"unexpected {type(error).__name__}: {' '.join(str(error).split())}"))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return outcomes[0] if outcomes else ("✗", f"no answer within {_TIMEOUT_S:.0f} s")
