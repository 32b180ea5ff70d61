"""The direction of imports (docs/architecture.md): mathematics at the bottom, the command line on top."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import streampca

ROOT = Path(streampca.__file__).parent

SHARED_BY_SOURCES = [
    "sources.base", "sources.broker_errors", "sources.certificates", "sources.dead_letter_headers",
    "sources.dead_letter_topic", "sources.transactions", "stream.events", "stream.record",
    "errors", "settings", "sources.client_transactions", "sources.oauth_tokens", "sources.topic_connection",
    "sources.client_source",
]  # fmt: skip

# Module prefix → prefixes of the modules that it may import; the longest matching entry applies.
MAY_IMPORT = {
    "errors": [],
    "version": [],
    "allocation": [],
    "blas": [],
    "logs": [],
    "thread_failures": [],
    "watchdog": [],
    "common_settings": [],
    "metrics": ["version"],
    "tracing": ["errors"],
    "store_url": [],
    "access": ["access", "errors"],
    "client": ["client"],
    "backfill": ["backfill", "allocation", "stream", "stores.base", "stores.checkpoints", "vectors", "pca", "errors"],
    "export": ["export", "stream.model_file", "ImplicitKrasulina"],
    "settings": ["settings", "common_settings", "store_url", "errors"],
    "pca": ["pca"],
    "estimator": ["estimator", "stream.fold", "stream.decoded", "pca"],
    "vectors": ["pca.arrays", "vectors", "errors"],
    "stream": ["stream", "vectors", "pca", "errors"],
    "sources": ["sources", "stream.events", "stream.record", "errors", "settings", "watchdog"],
    "sources.kafka_python": [*SHARED_BY_SOURCES, "sources.kafka_python"],
    "sources.confluent": [*SHARED_BY_SOURCES, "sources.confluent"],
    "sources.schema_registry": ["sources.broker_errors", "stream.formats", "errors", "settings.formats", "watchdog"],
    "stores": ["stores", "stream", "store_url", "errors"],
    "consumer_group": [
        "consumer_group", "stream", "pca.arrays", "pca.state.Losses", "errors", "metrics", "sources.base",
        "stores.process_status", "access.tokens",
    ],
    "worker": [
        "worker", "consumer_group", "stream", "pca", "errors", "metrics", "sources.base", "stores.base",
        "stores.checkpoints", "stores.models", "stores.process_status", "watchdog",
    ],
    "transform": [
        "transform", "consumer_group", "stream", "pca", "errors", "metrics", "sources.base",
        "sources.dead_letter_headers", "sources.transactions", "stores.model_cache", "stores.process_status",
        "watchdog",
    ],
    "api": [
        "api", "stores.base", "stores.model_cache", "stores.models", "stores.process_status", "stream.model_file",
        "stream.partitions", "vectors", "pca.model", "pca.scoring", "pca.arrays", "errors", "settings", "metrics",
        "thread_failures", "tracing", "version", "access",
    ],
    # These alone choose among concrete sources and stores.
    "commands": [
        "commands", "consumer_group", "worker", "transform", "sources", "stores", "stream", "vectors", "pca",
        "settings", "common_settings", "allocation", "blas", "errors", "logs", "thread_failures", "store_url",
        "api.server", "metrics", "access", "export", "client", "tracing", "backfill", "watchdog",
    ],
    "demo": ["demo", "stores", "stream.model_file", "vectors", "pca.arrays", "settings", "errors"],
    "cli": ["commands", "demo.run", "blas", "settings", "common_settings", "logs", "errors", "version"],
    "__main__": ["cli"],
    "": ["pca", "estimator", "errors", "version"],  # the public API
}  # fmt: skip


def names_imported(source: str, module: str, *, package: bool = False) -> Iterator[str]:
    """All names that a module imports, anywhere in it; `from a import b` gives a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if package else module.split(".")[:-1]
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def violations(source: str, module: str, *, package: bool = False) -> list[str]:
    """The imports of a module (`streampca.…`) that the rules forbid."""
    short = module.removeprefix("streampca").removeprefix(".")
    layer = max((name for name in MAY_IMPORT if has_prefix(short, name)), key=len)
    if layer == "" and short:
        return [f"{module} has no place in the layers: give it one in MAY_IMPORT"]
    imported = {
        name.removeprefix("streampca.")
        for name in names_imported(source, module, package=package)
        if has_prefix(name, "streampca")
    }
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
    assert violations(path.read_text(encoding="utf-8"), module, package=path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("streampca.pca.blocked.ritz", "from streampca.stream import fold"),
        ("streampca.stream.fold", "def f():\n    from ..settings import WorkerSettings"),
        ("streampca.worker.loop", "from streampca.sources.kafka_python.source import KafkaPythonSource"),
        ("streampca.api.app", "from streampca.stores import directory"),
        ("streampca.sources.confluent.source", "from streampca.sources.kafka_python import patches"),
        ("streampca.novelty", ""),
    ],
)
def test_violations_are_detected(module: str, source: str) -> None:
    assert violations(source, module)
