"""`streampca fit`: learns from a file in one pass, as a worker learns a partition."""

import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from threadpoolctl import threadpool_limits

from streampca.cli import locations
from streampca.cli.console import console, print_notes, print_row_warnings, print_warning, progress, table
from streampca.errors import InputError, SettingsError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.rows import RowChunk, Rows
from streampca.fold import model_file
from streampca.fold.dominance import describe_dominant_dimension
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import MergedFold
from streampca.fold.past_scores import PastScoresBuilder
from streampca.fold.restored_fold import restore_fold
from streampca.formats.judge import Judge
from streampca.formats.record import batch_of_rows
from streampca.formats.seen_names import SeenNames
from streampca.pca import axes
from streampca.pca.learning import LearningConfig
from streampca.pca.missing_values import MissingValues, normalize_missing_values
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
    missing_values: str = ""  # numbers that mean "missing", separated by commas


def run(file: Path, output: str, options: FitOptions, start_from: str | None, file_options: FileOptions) -> None:
    """Learn the rows of a file and write the model.

    `start_from` is the location of a model to continue.
    """
    if options.missing not in ("refuse", "impute"):
        raise SettingsError(f"--missing {options.missing}: must be refuse or impute")
    start_model = locations.model_at(start_from) if start_from else None
    if start_model and options != FitOptions():
        raise SettingsError("--start-from: the model's own options are used, so give no others but those of the file")
    rows, fold_config = _open(file, file_options, options, start_model)
    locations.check_writable(output, ".npz")
    print_notes(rows)
    scores_builder = _create_scores_builder(fold_config, start_model)
    with threadpool_limits(1):  # for the same bits as from a worker
        fold = restore_fold(start_model, fold_config) if start_model else Fold.empty(fold_config.learning)
        started = time.perf_counter()
        fold = _learn(rows, fold, fold_config, scores_builder)
        seconds = time.perf_counter() - started
        if fold.stats.learned < 2:
            raise InputError(f"{file} holds only one vector; at least two are needed")
        merged = MergedFold.from_fold(fold, fold_config)
    published = _make_published_model(merged, fold_config, scores_builder)
    locations.write(output, model_file.encode(published))
    print_warning(describe_dominant_dimension(published))
    learned_before = start_model.version if start_model else 0
    learned_now = fold.stats.learned - learned_before
    _report(published.model, output, seconds, learned_now, clipped_count=merged.state.clipped)


def _open(
    file: Path, file_options: FileOptions, options: FitOptions, start_model: model_file.PublishedModel | None
) -> tuple[Rows, FoldConfig]:
    """Open the file. Return its rows, and the configuration of the model that learns them."""
    if start_model:
        file_options = file_options._replace(
            dimensions=start_model.model.dimensions,
            names=start_model.names,
            impute=start_model.impute,
        )
        rows = open_rows(file, file_options)
        fold_config = FoldConfig.from_dict(start_model.settings, start_model.names or rows.names)
    else:
        rows = open_rows(file, file_options._replace(impute=options.missing == "impute"))
        fold_config = _create_fold_config(options, rows)
    learning_config = fold_config.learning
    # The rows were opened without `missing_values`: these are settings of `fold_config`, which may depend on the rows.
    missing_values = MissingValues.of(learning_config.missing_values, learning_config.dtype)
    return rows._replace(missing_values=missing_values), fold_config


def _create_fold_config(options: FitOptions, rows: Rows) -> FoldConfig:
    """Create the configuration of a new model. Raises `SettingsError` if options contradict the file or each other."""
    d = rows.dimensions
    k = options.components or min(_COMPONENTS, d)
    if k > d:
        raise SettingsError(f"components ({k}) cannot exceed the dimensions of {rows.path} ({d})")
    if options.standardize and not options.center:
        raise SettingsError("--standardize divides by standard deviations about the mean, so it excludes --no-center")
    learning_config = LearningConfig(
        dimensions=d,
        components=k,
        center=options.center,
        dtype=options.dtype,
        impute=rows.impute,
        missing_values=_parse_missing_values(options.missing_values),
        standardize=options.standardize,
    )
    return FoldConfig(learning_config, half_life_messages=options.half_life, names=rows.names)


def _parse_missing_values(text: str) -> str:
    """Check the option --missing-values, and return its numbers as models spell them, "-999" for "-999.0".

    Raises `SettingsError` if the text is not numbers with commas between them.
    """
    try:
        return normalize_missing_values(text)
    except ValueError as error:
        raise SettingsError(f"--missing-values {text}: {error}") from None


def _create_scores_builder(fold_config: FoldConfig, start_model: model_file.PublishedModel | None) -> PastScoresBuilder:
    """Create the builder of past scores. It begins with the past scores of the model that is continued."""
    builder = PastScoresBuilder(fold_config.learning.components)
    if start_model and start_model.past_scores:
        builder.histograms = start_model.past_scores
    return builder


def _make_published_model(
    merged: MergedFold, fold_config: FoldConfig, scores_builder: PastScoresBuilder
) -> model_file.PublishedModel:
    """Make the model that `fit` writes to its output file.

    So that `fit --start-from` can continue from this model, it also has the covariance, or the axes if the state keeps
    no covariance. And it has `known`: for which share of the weight each entry, or each pair of entries, was known.
    """
    published = merged.make_published_model(fold_config, scores_builder.histograms, time.time())
    # The covariance is saved relative to the total variance, which the model itself holds.
    covariance_or_axes = axes.compute_covariance_or_axes(merged.state, published.model.total_variance)
    return replace(published, covariance_or_axes=covariance_or_axes, known=merged.state.known)


def _learn(rows: Rows, fold: Fold, fold_config: FoldConfig, scores_builder: PastScoresBuilder) -> Fold:
    """Return the fold that has learned the rows, too. Each vector is scored before it is learned.

    Raises `InputError` at the first vector that cannot be learned.
    """
    judge = Judge.of(fold_config.learning)
    skipped = Counter[str]()  # by reason
    seen_names = SeenNames(fold_config.names)
    with progress("learning") as update:
        for chunk in rows.chunks(skip_nulls=True):
            skipped += chunk.skipped
            seen_names.add_from(chunk.vectors)
            _refuse_bad_vector(chunk, judge, rows.path, fold_config.learning.components)
            # A file has no offsets, so a position is a number of learned vectors.
            position = fold.stats.learned + len(chunk.vectors)
            batch = batch_of_rows(chunk.vectors, position)
            fold, _losses = fold.take(batch, fold_config, before_block=scores_builder.score_block)
            stats = fold.stats
            loss_note = "" if stats.recent_loss is None else f"loss ratio {stats.recent_loss:.4f}"
            update(completed=chunk.progress, rows=stats.learned, note=loss_note)
    print_row_warnings(rows, skipped, seen_names)
    return fold


def _refuse_bad_vector(chunk: RowChunk, judge: Judge, path: str, components: int) -> None:
    """Raise `InputError` with the number of the row if a vector of the chunk cannot be learned."""
    bad_vector = judge.first_bad(chunk.vectors)
    if bad_vector is None:
        return
    # More components need more known entries in a vector.
    hint = f" with --components {components}" if bad_vector.reason == "too_few_observed" else ""
    raise InputError(f"{path}, row {chunk.rows[bad_vector.row]}: {bad_vector.message}{hint}")


def _report(model: Model, output: str, seconds: float, learned_count: int, *, clipped_count: int) -> None:
    """Print a table of the components, and how fast the vectors were learned.

    `clipped_count` is the number of outliers, which were moved towards the mean.
    """
    out = console()
    ratios = model.explained_variance_ratio
    ratio_sums = ratios.cumsum()
    headings = ("component", "explained variance", "ratio", "sum of ratios")
    rows = []
    for i, variance in enumerate(model.explained_variance):
        rows.append((str(i + 1), f"{variance:.6g}", f"{ratios[i]:.4%}", f"{ratio_sums[i]:.4%}"))
    out.print(table(headings, rows, right_aligned=headings))
    rate = learned_count / seconds if seconds > 0 else 0.0
    out.print(f"{learned_count:,} vectors of {model.dimensions} dimensions in {seconds:.1f} s ({rate:,.0f} per second)")
    if clipped_count:
        out.print(f"{clipped_count:,} clipped to the limit of influence")
    out.print(f"wrote {output}")
