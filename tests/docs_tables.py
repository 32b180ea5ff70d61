"""Tables of docs/ that are generated from the code: `python -m tests.docs_tables` writes them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from typer.main import get_command

from streampca.cli.app import app as command_line
from streampca.settings.base import sort_key
from streampca.settings.commands import ServeSettings, TransformSettings, WorkerSettings
from streampca.sidecar.app import create_app
from streampca.sidecar.errors import Problem
from streampca.stores.memory import MemoryStore
from streampca.transform.metrics import TransformMetrics
from streampca.worker.metrics import WorkerMetrics
from tests.example_models import sidecar_registry
from tests.monitoring.prometheus import described

DOCS = Path(__file__).parent.parent / "docs"


def commands() -> str:
    """Each command with the first sentence of its help."""
    found = flat(get_command(command_line).commands)
    return table(
        ["command", "what it does"],
        [[f"`streampca {name}`", (command.help or "").strip().split("\n")[0]] for name, command in found.items()],
    )


def flat(commands: dict[str, Any]) -> dict[str, Any]:
    """The commands, with those of groups in place of the groups."""
    found: dict[str, Any] = {}
    for name, command in commands.items():
        own = flat(getattr(command, "commands", {}))
        found |= {f"{name} {part}": each for part, each in own.items()} or {name: command}
    return found


def settings() -> str:
    """Each setting of worker, sidecar and transform once, in the order of `streampca check`."""
    rows: dict[str, dict[str, FieldInfo]] = {}
    for kind, role in ((WorkerSettings, "worker"), (TransformSettings, "transform"), (ServeSettings, "serve")):
        for name, field in kind.model_fields.items():
            rows.setdefault(name, {})[role] = field
    lines = []
    for name, fields in sorted(rows.items(), key=lambda row: sort_key(row[0], next(iter(row[1].values())))):
        defaults = ", ".join(dict.fromkeys(map(shown, fields.values())))  # in the order of the roles
        roles, description = ", ".join(fields) if len(fields) < 3 else "all", next(iter(fields.values())).description
        lines.append([f"`{name}`", defaults, roles, description or ""])
    return table(["setting", "default", "of", "meaning"], lines)


def shown(field: FieldInfo) -> str:
    """A default value as the docs show it."""
    value = field.default
    if field.is_required() or value is None:
        return "required" if field.is_required() else "unset"
    if value == "":
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def metrics() -> str:
    """Each metric of worker, sidecar and transform."""
    worker, transform = described(WorkerMetrics("t").registry), described(TransformMetrics("t").registry)
    described_by = {"worker": worker, "sidecar": described(sidecar_registry()), "transform": transform}
    roles: dict[tuple[str, str], list[str]] = {}
    for role, metrics_of_role in described_by.items():
        for metric in sorted(metrics_of_role.items()):
            roles.setdefault(metric, []).append(role)
    rows = [[f"`{name}`", ", ".join(of), text] for (name, text), of in roles.items()]
    return table(["metric", "of", "meaning"], rows)


def endpoints() -> str:
    """Each path of the sidecar."""
    app = create_app(MemoryStore(), ServeSettings(topic="t"))
    rows = [
        [f"`{method.upper()} {path}`", operation["description"]]
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]
    pages = [
        ["`GET /`", "The page for people: the model and the workers, live."],
        ["`GET /docs`", "All of this, to try in the browser."],
    ]
    return table(["endpoint", "what it answers"], [*rows, *pages])


def errors() -> str:
    """Each type of error of the sidecar."""
    return table(["type", "status", "meaning"], [[f"`{p.type}`", str(p.status), p.title] for p in Problem])


TABLES: dict[str, tuple[Path, Callable[[], str]]] = {
    "commands": (DOCS / "configuration.md", commands),
    "settings": (DOCS / "configuration.md", settings),
    "metrics": (DOCS / "monitoring.md", metrics),
    "endpoints": (DOCS / "api.md", endpoints),
    "errors": (DOCS / "api.md", errors),
}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def block(name: str) -> re.Pattern[str]:
    """A pattern for the text between the two markers of a table."""
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=\n<!-- /{name} -->)", re.DOTALL)


def main() -> None:
    """Write every table into its page."""
    for name, (page, make) in TABLES.items():
        content = make()
        text, count = block(name).subn(lambda _, content=content: content, page.read_text())
        assert count == 1, f"{page.name} must contain the markers of {name} once"
        page.write_text(text)


if __name__ == "__main__":
    main()
