"""`streampca doctor`: checks everything that a worker needs."""

import threading
from collections.abc import Callable

from streampca.commands.doctor_checks import DoctorChecks
from streampca.commands.printing import console
from streampca.errors import StreampcaError
from streampca.settings import WorkerSettings

_TIMEOUT_S = 12.0  # of a check: a file server may hang


def run(settings: WorkerSettings) -> int:
    """Print a line for each check; return the exit code."""
    out = console()
    checks = DoctorChecks(settings)
    failed = 0
    try:
        for name, check in checks.checks():
            mark, text = _outcome(check)
            failed += mark == "✗"
            out.print(f"{mark} {name}: {text}", style={"✗": "red", "–": "dim"}.get(mark, ""))
    finally:
        checks.close()
    out.print(f"{failed} checks failed" if failed else "all checks passed", style="bold")
    return 1 if failed else 0


def _outcome(check: Callable[[], str | None]) -> tuple[str, str]:
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
