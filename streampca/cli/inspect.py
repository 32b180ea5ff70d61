"""`streampca inspect`: shows the content of a checkpoint file, a model file or a store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streampca.cli import locations
from streampca.cli.console import console, iso_time, table
from streampca.errors import DamagedFileError, StoreError
from streampca.fold import checkpoint as checkpoint_file, earlier_format, model_file, npz
from streampca.fold.partitions import partition_name
from streampca.stores.base import Store, list_topics
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from streampca.stores.pins import Pins


def run(location: str, *, as_json: bool) -> None:
    """Print the content of the file or store at a path or URL. Raises `StreampcaError` if it cannot be read."""
    if locations.is_store(location):
        content = describe_store(location)
    else:
        data = locations.read(location)
        try:
            content = _describe_file(location, data)
        except DamagedFileError as error:
            raise DamagedFileError(f"{location}: {error}") from None
    if as_json:
        print(json.dumps(content, indent=2))  # noqa: T201
    else:
        _print(content)


def _describe_file(path: str, data: bytes) -> dict[str, Any]:
    """Return what a model file or a checkpoint file holds.

    Raises `StoreError` if the file is neither, and `DamagedFileError` if it is damaged.
    """
    if not npz.is_streampca_file(data):
        raise StoreError(f"{path} is not a checkpoint or model of streampca; it begins with {data[:16]!r}")
    try:
        return _describe_model(data)
    except npz.OtherKindError:
        return _describe_checkpoint(data)


def _describe_model(data: bytes) -> dict[str, Any]:
    """Return the header of a model file, and the sizes and variances of its model. Raises `DamagedFileError`."""
    model = model_file.decode(data).model  # also checks the whole file
    # The model does not keep the header.
    header, _arrays = npz.decode(data, model_file.KIND, model_file.FORMAT_VERSION, earlier_format.upgrade_model)
    return {
        **header,
        "dimensions": model.dimensions,
        "components": model.n_components,
        "explained_variance": model.explained_variance.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "explained_variance_ratio_sum": float(model.explained_variance_ratio.sum()),
    }


def _describe_checkpoint(data: bytes) -> dict[str, Any]:
    """Return the header of a checkpoint file, and the sizes of its fold. Raises `DamagedFileError`."""
    fold = checkpoint_file.decode(data).fold  # also checks the whole file
    # The fold does not keep the header.
    header, _arrays = npz.decode(
        data, checkpoint_file.KIND, checkpoint_file.FORMAT_VERSION, earlier_format.upgrade_checkpoint
    )
    del header["event_time"]  # too long to show
    dimensions, columns = fold.state.C.shape
    return {
        **header,
        "dimensions": dimensions,
        "columns": columns,
        "dtype": str(fold.state.C.dtype),
        "pending": len(fold.pending),
        "loss_ratio": fold.stats.loss_ratio,
    }


def describe_store(location: Path | str) -> dict[str, Any]:
    """Return the content of a store by topic. Raises `StoreError` if it has no topic."""
    store = open_store(location)
    topics = list_topics(store, "checkpoints", "models")
    if not topics:
        raise StoreError(f"{location} holds no checkpoints and no models")
    return {
        "kind": "store",
        "path": str(location),
        "topics": {topic: _describe_topic(store, topic) for topic in topics},
    }


def _describe_topic(store: Store, topic: str) -> dict[str, Any]:
    """Return the partitions, models and pins of a topic. A pin is a user's name for a version, which is then kept."""
    checkpoints = Checkpoints(store, topic)
    versions = Models(store, topic).versions()
    partitions = {}
    for partition in checkpoints.partitions():
        partitions[partition_name(partition)] = _describe_partition(checkpoints, partition)
    return {
        "partitions": partitions,
        "models": len(versions),
        "newest_model": versions[-1] if versions else None,
        "versions": versions,
        "pins": Pins(store, topic).all(),
    }


def _describe_partition(checkpoints: Checkpoints, partition: int) -> dict[str, int | None]:
    """Return the number of checkpoints of a partition, and the counts in the newest one, if it can be read."""
    count = len(checkpoints.offsets(partition))
    newest = checkpoints.newest(partition)
    if newest is None:
        return {"checkpoints": count, "next_offset": None, "learned": None, "rejected": None, "skipped": None}
    stats = newest.fold.stats
    return {
        "checkpoints": count,
        "next_offset": newest.fold.position,
        "learned": stats.learned,
        "rejected": sum(stats.rejected.values()),
        "skipped": stats.skipped,
    }


def _print(content: dict[str, Any]) -> None:
    """Print the content of a file as one table, or the content of a store as a table for each topic."""
    if content["kind"] == "store":
        for topic, content_of_topic in content["topics"].items():
            _print_topic(topic, content_of_topic)
        return
    rows = [[name, _format(value, name)] for name, value in _flatten(content)]
    console().print(table([], rows))


def _print_topic(topic: str, content: dict[str, Any]) -> None:
    """Print the models and pins of a topic, and a table of its partitions."""
    out = console()
    versions = content["versions"]
    out.print(f"{topic}: {len(versions)} models, newest version {_format(content['newest_model'])}")
    if versions:
        out.print(f"versions: {', '.join(map(str, versions))}")
    pins = [f"{version} as {name}" for name, version in content["pins"].items()]
    if pins:
        out.print(f"pinned: {', '.join(pins)}")
    columns = ["next_offset", "learned", "rejected", "skipped", "checkpoints"]
    rows = []
    for partition, values in content["partitions"].items():
        rows.append([partition, *(_format(values[column]) for column in columns)])
    out.print(table(["partition", *columns], rows))


def _flatten(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values: first the plain values, then one by one the entries of lists and dictionaries."""
    for name, value in content.items():
        if not isinstance(value, (dict, list)):
            yield name, value
    for name, value in content.items():
        if isinstance(value, dict):
            for key, entry in value.items():
                yield f"{name}.{key}", entry
        elif isinstance(value, list):
            for index, entry in enumerate(value):
                yield f"{name}[{index}]", entry


def _format(value: Any, name: str = "") -> str:
    """Return a value as text for people; "–" if there is no value.

    The name says whether the value is a time.
    """
    is_unknown_time = name == "published_at" and value == 0
    if value in (None, "") or is_unknown_time:
        return "–"
    # `iso_time` returns None for an unknown time, which is negative, and for a time beyond the calendar.
    if name == "published_at":  # in seconds
        return iso_time(1000 * value) or "–"
    if name.endswith("_ms"):
        return iso_time(value) or "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
