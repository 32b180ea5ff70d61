"""`streampca fit`: one pass over a file, as a worker passes over a partition."""

import os
import secrets
import time
from pathlib import Path

from rich.table import Table
from threadpoolctl import threadpool_limits

from streampca.commands.printing import console
from streampca.commands.progress import progress
from streampca.commands.rows import Rows, open_rows
from streampca.errors import InputError, SettingsError, StoreError
from streampca.pca.learning import Recipe
from streampca.pca.summary import model_of
from streampca.stream import published
from streampca.stream.fold import Fold, Shape
from streampca.stream.published import Published

_COMPONENTS = 10  # where the file has as many dimensions


def run(file: Path, output: Path, shape: Shape) -> None:
    """Learn the file and write the model; `shape.recipe.dimensions` is taken from the file."""
    rows = open_rows(file)
    shape = _fitted(shape, rows)
    _refuse_unwritable(output)
    with threadpool_limits(1):  # as in the worker: the same bits
        fold, seconds = _learn(rows, shape)
    if fold.tally.learned < 2:
        raise InputError(f"{file} holds one vector only; a direction takes two")
    model = _published(fold, shape)
    _write(output, published.encode(model))
    _report(model, output, seconds)


def shape_of(components: int | None, oversampling: int, center: bool, half_life: float | None, dtype: str) -> Shape:
    """What shapes the model, apart from the dimensions, which the file will tell (and the components, if None)."""
    return Shape(Recipe(0, components or 0, oversampling, center, dtype), half_life_messages=half_life)


def _fitted(shape: Shape, rows: Rows) -> Shape:
    r, d = shape.recipe, rows.dimensions
    if r.components > d:
        raise SettingsError(f"components ({r.components}) cannot exceed the dimensions of {rows.path} ({d})")
    recipe = Recipe(d, r.components or min(_COMPONENTS, d), r.oversampling, r.center, r.dtype)
    return Shape(recipe, half_life_messages=shape.half_life_messages)


def _learn(rows: Rows, shape: Shape) -> tuple[Fold, float]:
    recipe, fold = shape.recipe, Fold.empty(shape.recipe)
    started = time.perf_counter()
    with progress() as bar:
        task = bar.add_task("learning", total=1.0, rows=0, note="")
        for vectors, share in rows.pieces():
            learned = fold.tally.learned
            too_large = abs(vectors).max(axis=1) > recipe.largest_value
            if too_large.any():
                row = learned + int(too_large.argmax()) + 1
                raise InputError(f"{rows.path}, row {row}: beyond ±{recipe.largest_value:g} squares overflow")
            vectors = vectors.astype(recipe.dtype, copy=False)
            fold, _ = fold.learn(vectors, [-1] * len(vectors), learned + len(vectors), shape)
            tally = fold.tally
            loss = f"loss ratio {tally.loss_ewma / tally.norm_ewma:.4f}" if tally.norm_ewma else ""
            bar.update(task, completed=share, rows=tally.learned, note=loss)
    return fold, time.perf_counter() - started


def _published(fold: Fold, shape: Shape) -> Published:
    tally = fold.tally
    return Published(
        version=tally.learned,
        model=model_of(fold.provisional(shape.recipe), shape.recipe.components),
        loss=tally.loss if tally.scored else None,
        loss_ratio=tally.loss / tally.norm if tally.norm else None,
        loss_ewma=tally.loss_ewma / tally.norm_ewma if tally.norm_ewma else None,
        published_at=time.time(),
        settings=shape.as_dict(),
    )


def _refuse_unwritable(output: Path) -> None:
    """Better now than after an hour of learning."""
    folder = output.absolute().parent
    if output.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise StoreError(
            f"cannot write {output}: "
            + ("it is a folder" if output.is_dir() else f"{folder} is no folder that can be written to")
        )


def _write(output: Path, data: bytes) -> None:
    temporary = output.with_name(f"~{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(data)
        temporary.replace(output)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"cannot write {output}: {error.strerror}") from None


def _report(result: Published, output: Path, seconds: float) -> None:
    model = result.model
    out = console()
    table = Table(box=None, pad_edge=False)
    for heading in ("component", "explained variance", "ratio", "sum of ratios"):
        table.add_column(heading, justify="right")
    total = 0.0
    for i, (variance, ratio) in enumerate(zip(model.explained_variance, model.explained_variance_ratio, strict=True)):
        total += ratio
        table.add_row(str(i + 1), f"{variance:.6g}", f"{ratio:.4%}", f"{total:.4%}")
    out.print(table)
    rate = result.version / seconds if seconds > 0 else 0.0
    out.print(f"{result.version:,} vectors of {model.dimensions} dimensions in {seconds:.1f} s ({rate:,.0f} a second)")
    out.print(f"wrote {output}")
