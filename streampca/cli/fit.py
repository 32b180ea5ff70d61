"""`streampca fit`: learns from a file in one pass, as a worker learns a partition."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from threadpoolctl import threadpool_limits

from streampca.cli import locations
from streampca.cli.console import console, print_notes, progress, table
from streampca.errors import InputError, SettingsError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.rows import Rows
from streampca.fold import model_file
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import MergedFold
from streampca.fold.past_scores import PastScoresBuilder
from streampca.formats.judge import Judge
from streampca.formats.record import batch_of_rows
from streampca.pca import axes
from streampca.pca.learning import LearningConfig
from streampca.pca.model import Model

_COMPONENTS = 10  # default


@dataclass(frozen=True)
class FitOptions:
    """The options of `streampca fit` that shape the model."""

    components: int | None = None  # None: 10, or the dimensions of the file if these are fewer
    center: bool = True
    standardize: bool = False
    half_life: float | None = None  # in rows
    dtype: str = "float64"
    missing: str = "refuse"  # or "impute"


def run(file: Path, output: str, options: FitOptions, start_from: str | None, wanted: FileOptions) -> None:
    """Learn the rows of a file and write the model; `start_from` names a model to continue."""
    if options.missing not in ("refuse", "impute"):
        raise SettingsError(f"--missing {options.missing}: must be refuse or impute")
    before = locations.read_model(start_from) if start_from else None
    if before and options != FitOptions():
        raise SettingsError("--start-from: the model's own options are used, so give no others but those of the file")
    impute = before.impute if before else options.missing == "impute"
    if before:
        wanted = wanted._replace(dimensions=before.model.dimensions, names=before.names)
    rows = open_rows(file, wanted._replace(impute=impute))
    if before:
        fold_config = FoldConfig.from_dict(before.settings, before.names or rows.names)
    else:
        fold_config = _create_fold_config(options, rows)
    locations.check_writable(output)
    print_notes(rows)
    with threadpool_limits(1):  # the same bits as in a worker
        fold, past_scores, seconds = _learn(rows, fold_config, before)
        if fold.stats.learned < 2:
            raise InputError(f"{file} holds only one vector; at least two are needed")
        merged = MergedFold.alone(fold, fold_config)
    model = merged.published(fold_config, past_scores.entered, time.time())
    continuation = axes.continuation(merged.state, model.model.total_variance)
    model = replace(model, learned=continuation, known=merged.state.known)
    locations.write(output, model_file.encode(model))
    learned_before = before.version if before else 0
    learned = fold.stats.learned - learned_before
    _report(model.model, output, seconds, learned, merged.state.clipped)


def _create_fold_config(options: FitOptions, rows: Rows) -> FoldConfig:
    """Create the configuration of a new model. Raises `SettingsError` if options contradict the file or each other."""
    d = rows.dimensions
    k = options.components or min(_COMPONENTS, d)
    if k > d:
        raise SettingsError(f"components ({k}) cannot exceed the dimensions of {rows.path} ({d})")
    if options.standardize and not options.center:
        raise SettingsError("--standardize divides by standard deviations about the mean, so it excludes --no-center")
    learning_config = LearningConfig(
        d, k, center=options.center, dtype=options.dtype, impute=rows.impute, standardize=options.standardize
    )
    return FoldConfig(learning_config, half_life_messages=options.half_life, names=rows.names)


def _learn(
    rows: Rows, fold_config: FoldConfig, before: model_file.PublishedModel | None
) -> tuple[Fold, PastScoresBuilder, float]:
    """Learn the rows, after the model `before` if there is one; return the fold, its past scores and the seconds.

    Raises `InputError` at the first vector that cannot be learned.
    """
    learning_config = fold_config.learning
    fold = Fold.empty(learning_config)
    past_scores = PastScoresBuilder(learning_config.components)
    if before:
        state = axes.restore_state(before.model, before.learned, before.known, before.version, learning_config)
        fold = replace(fold, state=state, stats=replace(fold.stats, learned=before.version))
        past_scores.entered = before.past_scores or past_scores.entered
    absent = 0  # rows with null instead of a vector
    started = time.perf_counter()
    with progress("learning") as update:
        for vectors, share, _, numbers, nulls in rows.chunks(skip_nulls=True):
            absent += nulls
            learned = fold.stats.learned
            if bad := Judge.of(learning_config).first_bad(vectors):
                row, reason, message = bad
                hint = f" with --components {learning_config.components}" if reason == "too_few_observed" else ""
                raise InputError(f"{rows.path}, row {numbers[row]}: {message}{hint}")
            fold, _ = fold.take(batch_of_rows(vectors, learned + len(vectors)), fold_config, past_scores.before_block)
            stats = fold.stats
            loss = "" if stats.recent_loss is None else f"loss ratio {stats.recent_loss:.4f}"
            update(completed=share, rows=stats.learned, note=loss)
    if absent:
        console().print(f"{absent:,} rows skipped: null instead of a vector")
    return fold, past_scores, time.perf_counter() - started


def _report(model: Model, output: str, seconds: float, learned: int, clipped: int) -> None:
    """Print a table of the components and how fast the model was learned, in `seconds`."""
    out = console()
    ratios = model.explained_variance_ratio
    headings = ("component", "explained variance", "ratio", "sum of ratios")
    values = zip(model.explained_variance, ratios, ratios.cumsum(), strict=True)
    rows = ((str(i), f"{v:.6g}", f"{ratio:.4%}", f"{total:.4%}") for i, (v, ratio, total) in enumerate(values, 1))
    out.print(table(headings, rows, right=headings))
    rate = learned / seconds if seconds > 0 else 0.0
    out.print(f"{learned:,} vectors of {model.dimensions} dimensions in {seconds:.1f} s ({rate:,.0f} per second)")
    if clipped:
        out.print(f"{clipped:,} clipped to the limit of influence")
    out.print(f"wrote {output}")
