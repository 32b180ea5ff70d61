"""`streampca inspect`: shows the content of a checkpoint file, a model file or a store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streampca.cli import locations
from streampca.cli.console import console, iso_time, table
from streampca.errors import DamagedFileError, StoreError
from streampca.fold import checkpoint as checkpoints, earlier_format, model_file as models, npz
from streampca.fold.partitions import partition_name
from streampca.stores.base import Store, topics_in
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from streampca.stores.pins import Pins


def run(location: str, *, as_json: bool) -> None:
    """Print the content of the file or store at a path or URL. Raises `StreampcaError` if it cannot be read."""
    if locations.is_store(location):
        facts = describe_store(location)
    else:
        facts = _describe_file(location, locations.read(location))
    if as_json:
        print(json.dumps(facts, indent=2))  # noqa: T201
    else:
        _print(facts)


def _describe_file(path: str, data: bytes) -> dict[str, Any]:
    """Return the facts of a model file or a checkpoint file. Raises `StoreError` if it is neither."""
    if not locations.is_streampca_file(data):
        raise StoreError(f"{path} is not a checkpoint or model of streampca; it begins with {data[:16]!r}")
    try:
        try:
            return _describe_model(data)
        except DamagedFileError as error:
            if "this is a checkpoint file" not in str(error):
                raise
        return _describe_checkpoint(data)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path}: {error}") from None


def _describe_model(data: bytes) -> dict[str, Any]:
    """Return the header of a model file, and its sizes and variances. Raises `DamagedFileError`."""
    model = models.decode(data).model
    header, _ = npz.decode(data, models.KIND, models.FORMAT_VERSION, earlier_format.upgrade_model)
    return {
        **header,
        "dimensions": model.dimensions,
        "components": model.n_components,
        "explained_variance": model.explained_variance.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "explained_variance_ratio_sum": float(model.explained_variance_ratio.sum()),
    }


def _describe_checkpoint(data: bytes) -> dict[str, Any]:
    """Return the header of a checkpoint file, and the size of its fold. Raises `DamagedFileError`."""
    fold = checkpoints.decode(data).fold
    header, _ = npz.decode(data, checkpoints.KIND, checkpoints.FORMAT_VERSION, earlier_format.upgrade_checkpoint)
    del header["event_time"]  # a long list of the last timestamps
    C = fold.state.C
    return {
        **header,
        "dimensions": C.shape[0],
        "columns": C.shape[1],
        "dtype": str(C.dtype),
        "pending": len(fold.pending),
        "loss_ratio": fold.stats.loss_ratio,
    }


def describe_store(location: Path | str) -> dict[str, Any]:
    """Return the content of a store by topic. Raises `StoreError` if it has no topic."""
    store = open_store(location)
    topics = topics_in(store, "checkpoints", "models")
    if not topics:
        raise StoreError(f"{location} holds no checkpoints and no models")
    return {
        "kind": "store",
        "path": str(location),
        "topics": {topic: _describe_topic(store, topic) for topic in topics},
    }


def _describe_topic(store: Store, topic: str) -> dict[str, Any]:
    """Return the partitions, models and pins of a topic; what a partition without a good checkpoint lacks is None."""
    saved = Checkpoints(store, topic)
    versions = Models(store, topic).versions()
    partitions = {}
    for partition in saved.partitions():
        newest = saved.newest(partition)
        stats = newest.fold.stats if newest else None
        partitions[partition_name(partition)] = {
            "checkpoints": len(saved.offsets(partition)),
            "next_offset": newest.fold.position if newest else None,
            "learned": stats.learned if stats else None,
            "rejected": sum((stats.rejected or {}).values()) if stats else None,
            "skipped": stats.skipped if stats else None,
        }
    return {
        "partitions": partitions, "models": len(versions), "newest_model": versions[-1] if versions else None,
        "versions": versions, "pins": Pins(store, topic).all(),
    }  # fmt: skip


def _print(facts: dict[str, Any]) -> None:
    """Print the facts of a file as one table, or those of a store as a table for each topic."""
    out = console()
    if facts["kind"] != "store":
        out.print(table([], [[name, _format(value, name)] for name, value in _flatten(facts)]))
        return
    for topic, facts_of_topic in facts["topics"].items():
        newest = facts_of_topic["newest_model"]
        versions = facts_of_topic["versions"]
        out.print(f"{topic}: {len(versions)} models, newest version {'–' if newest is None else newest}")
        if versions:
            out.print(f"versions: {', '.join(map(str, versions))}")
        if pins := facts_of_topic["pins"]:
            out.print(f"pinned: {', '.join(f'{version} as {name}' for name, version in pins.items())}")
        names = ["next_offset", "learned", "rejected", "skipped", "checkpoints"]
        rows = []
        for partition, row in facts_of_topic["partitions"].items():
            rows.append([partition, *(_format(row[name]) for name in names)])
        out.print(table(["partition", *names], rows))


def _flatten(facts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of facts; entries of lists and dictionaries come last, one by one."""
    for name, value in sorted(facts.items(), key=lambda item: isinstance(item[1], (dict, list))):
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", entry) for key, entry in value.items())
        elif isinstance(value, list):
            yield from ((f"{name}[{index}]", entry) for index, entry in enumerate(value))
        else:
            yield name, value


def _format(value: Any, name: str = "") -> str:
    """Format a value for people; a time, which is a number in JSON, becomes text in UTC."""
    if value in (None, "") or (name == "published_at" and not value):
        return "–"
    if name == "published_at":  # in seconds
        return iso_time(1000 * value) or "–"
    if name.endswith("_ms"):
        return iso_time(value) or "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
