"""The direction of imports (docs/architecture.md): mathematics at the bottom, the command line on top."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import streampca

ROOT = Path(streampca.__file__).parent

SHARED_BY_SOURCES = [
    "sources.base", "sources.broker_errors", "sources.client_connection", "sources.client_producer",
    "sources.client_source", "sources.client_transactions", "sources.read_positions",
    "sources.dead_letters", "sources.events", "sources.oauth_tokens", "sources.record_size", "sources.record_times",
    "formats.record.Columns", "formats.record.Record", "errors", "settings",
]  # fmt: skip

# Module prefix → prefixes of the modules that it may import; the longest matching entry applies.
MAY_IMPORT = {
    "errors": [],
    "version": [],
    "process": ["process", "errors", "version"],
    "settings": ["settings", "pca.missing_values", "errors"],
    "pca": ["pca"],
    "formats": ["formats", "pca", "settings.field_paths", "settings.plug_ins", "errors"],
    "files": ["files", "formats", "pca.angles", "pca.arrays", "pca.missing_values", "settings.field_paths", "errors"],
    "fold": ["fold", "formats.record", "pca", "errors"],
    "estimator": ["estimator", "fold", "formats.record.batch_of_rows", "formats.judge", "pca"],
    "client": ["client", "errors", "pca.arrays"],
    "export": ["fold.model_file", "StreamingPCA", "pca.missing_values"],
    "river": ["StreamingPCA", "errors", "pca.arrays"],
    "sources": ["sources", "formats", "errors", "settings", "process.watchdog", "process.file_versions"],
    "sources.kafka_python": [*SHARED_BY_SOURCES, "sources.kafka_python"],
    "sources.confluent": [*SHARED_BY_SOURCES, "sources.confluent"],
    "sources.schema_registry": [
        "sources.broker_errors", "formats", "errors", "settings.kafka", "settings.plug_ins", "process.watchdog",
    ],
    "stores": ["stores", "fold", "settings.pins", "settings.plug_ins", "settings.store_url", "errors"],
    "consumer_group": [
        "consumer_group", "fold", "formats.record", "formats.seen_names", "formats.errors.NO_VALUE",
        "formats.errors.CONDITION_UNMET", "pca.arrays", "pca.state.Losses", "errors",
        "process", "settings.commands", "sources.base", "sources.events", "stores.base", "stores.identity",
        "stores.process_status",
    ],
    "worker": [
        "worker", "consumer_group", "fold", "formats", "pca", "errors", "process", "sources.base", "sources.events",
        "stores.base", "stores.checkpoints", "stores.identity", "stores.models", "stores.parallel_requests",
        "stores.process_status",
    ],
    "transform": [
        "transform", "consumer_group", "fold", "formats", "pca", "settings.field_paths", "errors", "process",
        "sources.base", "sources.dead_letters", "sources.events", "sources.record_size",
        "sources.record_times", "sources.topic_reader", "stores.model_cache", "stores.pins", "stores.process_status",
    ],
    "backfill": [
        "backfill", "process", "fold", "formats", "files", "stores.base", "stores.checkpoints", "errors",
    ],
    "sidecar": [
        "sidecar", "stores.base", "stores.model_cache", "stores.models", "stores.pins", "stores.process_status",
        "fold.model_file", "fold.names", "fold.partitions", "formats", "pca.angles", "pca.arrays", "pca.drift",
        "pca.missing_values", "pca.model", "errors", "settings", "process", "version",
    ],
    "demo": ["demo", "stores", "fold.dominance", "fold.model_file", "files", "settings", "errors"],
    "cli": [  # the only one that chooses among concrete sources and stores
        "cli", "worker", "transform", "sidecar", "backfill", "demo", "consumer_group", "sources", "stores", "fold",
        "formats", "files", "pca", "settings", "process", "client", "export", "errors", "version",
    ],
    "__main__": ["cli"],
    "": ["pca", "estimator", "errors", "version"],  # the public API
}  # fmt: skip


def names_imported(source: str) -> Iterator[str]:
    """All names that a module imports, anywhere in it: `from a import b` gives a.b, and `from .a import b` .a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def violations(source: str, module: str) -> list[str]:
    """The imports of a module (`streampca.…`) that the rules forbid: relative ones, too."""
    short = module.removeprefix("streampca").removeprefix(".")
    layer = max((name for name in MAY_IMPORT if has_prefix(short, name)), key=len)
    if layer == "" and short:
        return [f"{module} has no place in the layers: give it one in MAY_IMPORT"]
    own = {name for name in names_imported(source) if has_prefix(name, "streampca") or name.startswith(".")}
    imported = {name.removeprefix("streampca.") for name in own}
    forbidden = [name for name in imported if not any(has_prefix(name, allowed) for allowed in MAY_IMPORT[layer])]
    return [f"{module} imports {name}" for name in sorted(forbidden)]


def has_prefix(name: str, prefix: str) -> bool:
    return prefix == "" or name == prefix or name.startswith(prefix + ".")


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(["streampca", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"), path)
        for path in sorted(ROOT.rglob("*.py"))
    ]


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_point_downwards(module: str, path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), module) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("streampca.pca.blocked.ritz", "from streampca.fold import fold"),
        ("streampca.fold.fold", "def f():\n    from ..settings import WorkerSettings"),
        ("streampca.worker.loop", "from streampca.sources.kafka_python.source import KafkaPythonSource"),
        ("streampca.sidecar.server", "from streampca.stores import directory"),
        ("streampca.sources.confluent.source", "from streampca.sources.kafka_python import client_internals"),
        ("streampca.novelty", ""),
    ],
)
def test_violations_are_detected(module: str, source: str) -> None:
    assert violations(source, module)
