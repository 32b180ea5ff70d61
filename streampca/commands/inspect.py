"""`streampca inspect`: shows the content of a checkpoint file, a model file or a store."""

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from streampca.commands import paths_or_urls
from streampca.commands.console import console
from streampca.errors import DamagedFileError, StoreError
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import store_of
from streampca.stores.models import Models
from streampca.stream import checkpoint as checkpoints
from streampca.stream import model_file as models
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.model_file import PublishedModel

_ZIP, _NAME_AT, _FIRST_MEMBER = b"PK\x03\x04", 30, b"header.npy"  # how every file that streampca writes begins


def run(place: str, *, as_json: bool) -> None:
    """Print the content of what is at a path or URL. Raises `StreampcaError` if it cannot be read."""
    is_store = paths_or_urls.is_store(place)
    facts = facts_of_store(place) if is_store else _facts_of_file(place, paths_or_urls.read(place))
    if as_json:
        print(json.dumps(facts, indent=2))  # noqa: T201
    else:
        _show(facts)


def _facts_of_file(path: str, data: bytes) -> dict[str, Any]:
    if not data.startswith(_ZIP) or data[_NAME_AT : _NAME_AT + len(_FIRST_MEMBER)] != _FIRST_MEMBER:
        raise StoreError(f"{path} is not a checkpoint or model of streampca; it begins with {data[:16]!r}")
    try:
        return {"kind": "model", **_model(models.decode(data))}
    except DamagedFileError as error:
        if "checkpoint file" not in str(error):
            raise DamagedFileError(f"{path}: {error}") from None
    try:
        return {"kind": "checkpoint", **_checkpoint(checkpoints.decode(data))}
    except DamagedFileError as error:
        raise DamagedFileError(f"{path}: {error}") from None


def _model(published: PublishedModel) -> dict[str, Any]:
    model = published.model
    return {
        "version": published.version,
        "topic": published.topic,
        "topic_id": published.topic_id,
        "dimensions": model.dimensions,
        "components": model.n_components,
        "weight": model.weight,
        "rejected": published.rejected,
        "loss": published.loss,
        "loss_ratio": published.loss_ratio,
        "loss_ewma": published.loss_ewma,
        "explained_variance": model.explained_variance.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "explained_variance_ratio_sum": float(model.explained_variance_ratio.sum()),
        "total_variance": model.total_variance,
        "subspace_error": published.subspace_error,
        "axis_errors": published.axis_errors,
        "first_timestamp": _time(published.first_timestamp_ms / 1000),
        "last_timestamp": _time(published.last_timestamp_ms / 1000),
        "published_at": _time(published.published_at),
        "positions": {str(partition): offset for partition, offset in sorted(published.positions.items())},
        "settings": published.settings,
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    fold, stats, state = checkpoint.fold, checkpoint.fold.stats, checkpoint.fold.state
    return {
        "topic": checkpoint.topic,
        "topic_id": checkpoint.topic_id,
        "partition": checkpoint.partition,
        "next_offset": fold.position,
        "learned": stats.learned,
        "of_these_pending": len(fold.pending),
        "rejected": dict(stats.rejected or {}),
        "gap": stats.gap,
        "dimensions": state.C.shape[0],
        "columns": state.rank,
        "dtype": str(state.C.dtype),
        "weight": state.weight,
        "total_variance": state.total_variance,
        "loss": stats.loss,
        "loss_ratio": stats.loss / stats.norm if stats.norm else None,
        "loss_ratio_ewma": stats.loss_ewma / stats.norm_ewma if stats.norm_ewma else None,
        "first_timestamp": _time(stats.first_ms / 1000),
        "last_timestamp": _time(stats.last_ms / 1000),
        "settings": checkpoint.settings,
    }


def facts_of_store(place: Path | str) -> dict[str, Any]:
    """The content of a store, by topic. Raises `StoreError` if there is none."""
    store = store_of(place)
    topics = sorted({name.rsplit("/", 1)[-1] for folder in ("checkpoints", "models") for name in store.names(folder)})
    if not topics:
        raise StoreError(f"{place} holds no checkpoints and no models")
    return {"kind": "store", "path": str(place), "topics": {topic: _topic(store, topic) for topic in topics}}


def _topic(store: Store, topic: str) -> dict[str, Any]:
    saved, published = Checkpoints(store, topic), Models(store, topic)
    versions = published.versions()
    partitions = {}
    for partition in saved.partitions():
        newest = saved.newest(partition)
        partitions[str(partition)] = {
            "checkpoints": len(saved.offsets(partition)),
            "next_offset": newest.fold.position if newest else None,
            "learned": newest.fold.stats.learned if newest else None,
            "rejected": sum((newest.fold.stats.rejected or {}).values()) if newest else None,
        }
    last = versions[-1] if versions else None
    return {"partitions": partitions, "models": len(versions), "newest_model": last, "versions": versions}


def _time(seconds: float) -> str | None:
    if seconds <= 0:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def _show(facts: dict[str, Any]) -> None:
    out = console()
    if facts["kind"] != "store":
        out.print(_table([], [[name, _formatted(value)] for name, value in _flat(facts)]))
        return
    for topic, found in facts["topics"].items():
        newest = found["newest_model"]
        out.print(f"{topic}: {found['models']} models, newest version {'–' if newest is None else newest}")
        if found["versions"]:
            out.print(f"versions: {', '.join(map(str, found['versions']))}")
        names = ["next_offset", "learned", "rejected", "checkpoints"]
        rows = [[number, *(_formatted(row[name]) for name in names)] for number, row in found["partitions"].items()]
        out.print(_table(["partition", *names], rows))


def _flat(facts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values; entries of lists and of dictionaries one by one."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", entry) for key, entry in value.items())
        elif isinstance(value, list):
            yield from ((f"{name}[{index}]", entry) for index, entry in enumerate(value))
        else:
            yield name, value


def _table(headings: list[str], rows: list[list[str]]) -> Table:
    table = Table(*headings, box=None, show_header=bool(headings), pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def _formatted(value: Any) -> str:
    if value is None or value == "":
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
