"""`streampca project`: where the vectors of a file lie, by the model of a file, of a store, or of a sidecar."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from streampca.cli.console import console, progress, report
from streampca.cli.locations import model_at
from streampca.errors import InputError, SettingsError, StoreError, naming_the_extra
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.projected import TABLES, projected_file
from streampca.pca.arrays import Array
from streampca.pca.model import Basis
from streampca.settings import store_url


class Projector(NamedTuple):
    """A model, wherever it is."""

    named: str
    dimensions: int
    components: int
    names: Sequence[str] | None  # of the dimensions
    impute: bool  # vectors may lack entries
    project: Callable[[Array], tuple[Array, Array]]
    """Coordinates (n, k) and residuals (n,) of vectors (n, d)."""


def run(file: Path, location: str, output: Path, basis: Basis, topic: str | None, files: FileOptions) -> None:
    """Project the file's vectors, chunk by chunk. Raises `StreampcaError`; then no file is written."""
    if basis not in ("principal", "whitened"):
        raise SettingsError(f"--basis {basis}: must be principal or whitened")
    with ExitStack() as opened:
        if store_url.scheme_of(location) in ("http", "https"):
            projector = _sidecar(location, basis, opened)
        elif store_url.scheme_of(location) or location.endswith(".npz") or Path(location).exists():
            projector = _model(location, basis, topic)
        else:
            raise StoreError(f"there is no file {location}; if it is a sidecar's address, write http://{location}")
        files = files._replace(dimensions=projector.dimensions, names=projector.names, impute=projector.impute)
        rows = open_rows(file, files._replace(others=output.suffix in TABLES))
        report(rows)
        opened.enter_context(threadpool_limits(1))  # the same bits as of a sidecar
        done = 0
        write = opened.enter_context(projected_file(output, projector.components, rows.others))
        update = opened.enter_context(progress("projecting"))
        for vectors, share, others, *_ in rows.chunks():
            coordinates, residual = projector.project(vectors)
            if not (np.isfinite(coordinates).all() and np.isfinite(residual).all()):
                last = done + len(vectors)
                raise InputError(f"{file}, rows {done + 1} to {last}: values too large, results exceed float64")
            write(coordinates, residual, others)
            done += len(vectors)
            update(completed=share, rows=done)
    console().print(f"{done:,} vectors projected by {projector.named}, written to {output}")


def _model(location: str, basis: Basis, topic: str | None) -> Projector:
    published = model_at(location, topic)
    model = published.model

    def project(vectors: Array) -> tuple[Array, Array]:
        projected = model.project(vectors)
        return projected.in_basis(basis), projected.residual

    return Projector(
        f"version {published.version}", model.dimensions, model.n_components, published.names, published.impute, project
    )


def _sidecar(url: str, basis: Basis, opened: ExitStack) -> Projector:
    """One version for the whole file, although newer ones may appear meanwhile."""
    with naming_the_extra("a sidecar's URL", "client"):
        from streampca.client import Client
    client = opened.enter_context(Client(url, token=os.environ.get("STREAMPCA_TOKEN")))
    about = client.model()
    version: int = about["version"]

    def project(vectors: Array) -> tuple[Array, Array]:
        answer = client.project(vectors, basis=basis, version=version)
        return answer.coordinates, answer.residual

    impute = about["settings"].get("missing") == "impute"
    return Projector(
        f"version {version} of {url}", about["dimensions"], about["components"], about.get("names"), impute, project
    )
