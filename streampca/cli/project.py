"""`streampca project`: projects the vectors of a file by a model of a file, of a store, or of a sidecar."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from streampca.cli.console import console, print_notes, print_row_warnings, progress
from streampca.cli.locations import model_at
from streampca.errors import InputError, SettingsError, StoreError, explain_missing_extra
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.projected import TABLE_SUFFIXES, projected_file
from streampca.files.rows import Rows, require_kind
from streampca.formats.seen_names import SeenNames
from streampca.pca.arrays import Array
from streampca.pca.missing_values import MissingValues
from streampca.pca.model import Basis
from streampca.settings import store_url


class Projector(NamedTuple):
    """Projects vectors by the model of a file, a store or a sidecar."""

    description: str  # for people
    dimensions: int
    components: int
    names: Sequence[str] | None  # of the dimensions
    impute: bool  # whether entries of vectors may be missing
    missing_values: MissingValues
    project: Callable[[Array], tuple[Array, Array]]  # vectors (n, d) to coordinates (n, k) and residuals (n,)


def run(file: Path, location: str, output: Path, basis: Basis, topic: str | None, file_options: FileOptions) -> None:
    """Project the vectors of a file and write the result. Raises `StreampcaError`, and then writes no file."""
    if basis not in ("principal", "whitened"):
        raise SettingsError(f"--basis {basis}: must be principal or whitened")
    with ExitStack() as opened:
        projector = _open_projector(location, basis, topic, opened)
        is_table = output.suffix in TABLE_SUFFIXES
        is_json_lines = require_kind(str(file)).kind == "jsonl"
        keeps_json_fields = is_json_lines and output.suffix != ".npy"  # an .npy file has room for numbers only
        file_options = file_options._replace(
            dimensions=projector.dimensions,
            names=projector.names,
            impute=projector.impute,
            other_columns=is_table or keeps_json_fields,
        )
        rows = open_rows(file, file_options)
        rows = rows._replace(missing_values=projector.missing_values)  # as when the model was learned
        print_notes(rows)
        # A table needs its columns before the first row.
        types_of_other_columns = rows.other_types if is_table else {}
        opened.enter_context(threadpool_limits(1))  # for the same bits as from a sidecar
        vector_count = _project_rows(rows, projector, output, types_of_other_columns)
    console().print(f"{vector_count:,} vectors projected by {projector.description}, written to {output}")


def _project_rows(rows: Rows, projector: Projector, output: Path, types_of_other_columns: Mapping[str, Any]) -> int:
    """Project the rows, and write them to the output. Return the number of vectors.

    An output that is a table keeps the other columns, whose types are given by name.
    """
    vector_count = 0
    seen_names = SeenNames(projector.names)
    skipped = Counter[str]()  # by reason
    components = projector.components
    with projected_file(output, components, types_of_other_columns) as write, progress("projecting") as update:
        for chunk in rows.chunks(skip_nulls=True):
            skipped += chunk.skipped
            coordinates, residual = projector.project(chunk.vectors)
            if not (np.isfinite(coordinates).all() and np.isfinite(residual).all()):
                first_row = vector_count + 1
                last_row = vector_count + len(chunk.vectors)
                raise InputError(
                    f"{rows.path}, rows {first_row} to {last_row}: values too large, results exceed float64"
                )
            write(coordinates, residual, chunk.other_columns)
            vector_count += len(chunk.vectors)
            seen_names.add_from(chunk.vectors)
            update(completed=chunk.progress, rows=vector_count)
    print_row_warnings(rows, skipped, seen_names)
    return vector_count


def _open_projector(location: str, basis: Basis, topic: str | None, opened: ExitStack) -> Projector:
    """Open the sidecar, store or model file at a location. Raises `StoreError` if there is nothing.

    `basis` says whether coordinates are plain ("principal") or divided by standard deviations ("whitened").
    """
    scheme = store_url.find_scheme(location)
    if scheme in store_url.SIDECAR_SCHEMES:
        return _open_sidecar(location, basis, opened)
    if scheme or location.endswith(".npz") or Path(location).exists():
        return _open_model(location, basis, topic)
    raise StoreError(f"there is no file {location}; if it is a sidecar's address, write http://{location}")


def _open_model(location: str, basis: Basis, topic: str | None) -> Projector:
    """Open the model of a file, or the newest model of a store."""
    published = model_at(location, topic)
    model = published.model

    def project(vectors: Array) -> tuple[Array, Array]:
        projected = model.project(vectors)
        return projected.in_basis(basis), projected.residual

    return Projector(
        description=f"version {published.version}",
        dimensions=model.dimensions,
        components=model.n_components,
        names=published.names,
        impute=published.impute,
        missing_values=published.missing_values,
        project=project,
    )


def _open_sidecar(url: str, basis: Basis, opened: ExitStack) -> Projector:
    """Open the model of a sidecar. Its version projects the whole file, even if newer versions appear."""
    with explain_missing_extra("client", needed_by="a sidecar's URL"):
        from streampca.client import Client
    client = opened.enter_context(Client(url, token=os.environ.get("STREAMPCA_TOKEN")))
    about = client.model()
    version: int = about["version"]
    settings = about["settings"]

    def project(vectors: Array) -> tuple[Array, Array]:
        answer = client.project(vectors, basis=basis, version=version)
        return answer.coordinates, answer.residual

    return Projector(
        description=f"version {version} of {url}",
        dimensions=about["dimensions"],
        components=about["components"],
        names=about.get("names"),
        impute=settings.get("missing") == "impute",
        # The model's type says how precisely an entry must equal a number such as -999 to be missing.
        missing_values=MissingValues.of(settings.get("missing_values", ""), settings.get("dtype", "float64")),
        project=project,
    )
