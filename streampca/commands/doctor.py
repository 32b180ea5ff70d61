"""`streampca doctor`: tries, one after the other, everything that a worker will need."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streampca.commands.doctor_checks import DoctorChecks
from streampca.commands.printing import console
from streampca.errors import StreampcaError
from streampca.settings import WorkerSettings

_LONGEST_S = 12.0  # one check; a file server that hangs must not make us hang


def run(config: Path | None, **given: Any) -> int:
    """Print a line for each check; the exit code. Raises `SettingsError` when the settings are wrong already."""
    settings = WorkerSettings.read(config, **given)
    out = console()
    examination = DoctorChecks(settings)
    failed = 0
    try:
        for name, check in examination.checks():
            mark, text = _outcome(check)
            failed += mark == "✗"
            out.print(f"{mark} {name}: {text}", style={"✗": "red", "–": "dim"}.get(mark, ""))
    finally:
        examination.close()
    out.print(f"{failed} of the checks failed" if failed else "all is well", style="bold")
    return 1 if failed else 0


def _outcome(check: Callable[[], str | None]) -> tuple[str, str]:
    """A mark and a text: what was found, what to mend, or why it was not checked."""
    found: list[tuple[str, str]] = []

    def attempt() -> None:
        try:
            text = check()
            found.append(("–", "not checked, since a check before failed") if text is None else ("✓", text))
        except StreampcaError as error:
            found.append(("✗", " ".join(str(error).split())))
        except Exception as error:
            found.append(("✗", f"unexpected {type(error).__name__}: {' '.join(str(error).split())}"))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(_LONGEST_S)
    return found[0] if found else ("✗", f"no answer within {_LONGEST_S:.0f} s")
