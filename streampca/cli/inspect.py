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
    """Print the content of what is at a path or URL. Raises `StreampcaError` if it cannot be read."""
    if locations.is_store(location):
        facts = facts_of_store(location)
    else:
        facts = _facts_of_file(location, locations.read(location))
    if as_json:
        print(json.dumps(facts, indent=2))  # noqa: T201
    else:
        _show(facts)


def _facts_of_file(path: str, data: bytes) -> dict[str, Any]:
    if not locations.is_ours(data):
        raise StoreError(f"{path} is not a checkpoint or model of streampca; it begins with {data[:16]!r}")
    try:
        try:
            return _model(data)
        except DamagedFileError as error:
            if "this is a checkpoint file" not in str(error):
                raise
        return _checkpoint(data)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path}: {error}") from None


def _model(data: bytes) -> dict[str, Any]:
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


def _checkpoint(data: bytes) -> dict[str, Any]:
    fold = checkpoints.decode(data).fold
    header, _ = npz.decode(data, checkpoints.KIND, checkpoints.FORMAT_VERSION, earlier_format.upgrade_checkpoint)
    del header["event_time"]  # mostly its last timestamps
    C, stats = fold.state.C, fold.stats
    return {
        **header,
        "dimensions": C.shape[0],
        "columns": C.shape[1],
        "dtype": str(C.dtype),
        "pending": len(fold.pending),
        "loss_ratio": stats.loss_ratio,
    }


def facts_of_store(location: Path | str) -> dict[str, Any]:
    """The content of a store, by topic. Raises `StoreError` if there is none."""
    store = open_store(location)
    topics = topics_in(store, "checkpoints", "models")
    if not topics:
        raise StoreError(f"{location} holds no checkpoints and no models")
    return {"kind": "store", "path": str(location), "topics": {topic: _topic(store, topic) for topic in topics}}


def _topic(store: Store, topic: str) -> dict[str, Any]:
    saved, published = Checkpoints(store, topic), Models(store, topic)
    versions = published.versions()
    partitions = {}
    for partition in saved.partitions():
        newest = saved.newest(partition)
        partitions[partition_name(partition)] = {
            "checkpoints": len(saved.offsets(partition)),
            "next_offset": newest.fold.position if newest else None,
            "learned": newest.fold.stats.learned if newest else None,
            "rejected": sum((newest.fold.stats.rejected or {}).values()) if newest else None,
            "skipped": newest.fold.stats.skipped if newest else None,
        }
    return {
        "partitions": partitions, "models": len(versions), "newest_model": versions[-1] if versions else None,
        "versions": versions, "pins": Pins(store, topic).all(),
    }  # fmt: skip


def _show(facts: dict[str, Any]) -> None:
    out = console()
    if facts["kind"] != "store":
        out.print(table([], [[name, _formatted(value, name)] for name, value in _flat(facts)]))
        return
    for topic, facts_of_topic in facts["topics"].items():
        newest, versions, partitions = (facts_of_topic[name] for name in ("newest_model", "versions", "partitions"))
        out.print(f"{topic}: {len(versions)} models, newest version {'–' if newest is None else newest}")
        if versions:
            out.print(f"versions: {', '.join(map(str, versions))}")
        if pins := facts_of_topic["pins"]:
            out.print(f"pinned: {', '.join(f'{version} as {name}' for name, version in pins.items())}")
        names = ["next_offset", "learned", "rejected", "skipped", "checkpoints"]
        rows = [[number, *(_formatted(row[name]) for name in names)] for number, row in partitions.items()]
        out.print(table(["partition", *names], rows))


def _flat(facts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values; then entries of lists and of dictionaries one by one."""
    for name, value in sorted(facts.items(), key=lambda item: isinstance(item[1], (dict, list))):
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", entry) for key, entry in value.items())
        elif isinstance(value, list):
            yield from ((f"{name}[{index}]", entry) for index, entry in enumerate(value))
        else:
            yield name, value


def _formatted(value: Any, name: str = "") -> str:
    """A value as people read it; times, which JSON has as numbers, in UTC."""
    if value in (None, "") or (name == "published_at" and not value):
        return "–"
    if name.endswith("_ms") or name == "published_at":  # which is in seconds
        return iso_time(value if name.endswith("_ms") else 1000 * value) or "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
