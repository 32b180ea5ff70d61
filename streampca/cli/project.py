"""`streampca project`: projects the vectors of a file by a model of a file, of a store, or of a sidecar."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from streampca.cli.console import console, print_notes, progress
from streampca.cli.locations import read_model
from streampca.errors import InputError, SettingsError, StoreError, naming_the_extra
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.projected import TABLES, projected_file
from streampca.pca.arrays import Array
from streampca.pca.model import Basis
from streampca.settings import store_url


class Projector(NamedTuple):
    """A model of a file, a store or a sidecar, which projects vectors."""

    description: str  # for people
    dimensions: int
    components: int
    names: Sequence[str] | None  # of the dimensions
    impute: bool  # whether entries of vectors may be missing
    project: Callable[[Array], tuple[Array, Array]]  # vectors (n, d) to coordinates (n, k) and residuals (n,)


def run(file: Path, location: str, output: Path, basis: Basis, topic: str | None, files: FileOptions) -> None:
    """Project the vectors of a file and write the result. Raises `StreampcaError`, and then writes no file."""
    if basis not in ("principal", "whitened"):
        raise SettingsError(f"--basis {basis}: must be principal or whitened")
    with ExitStack() as opened:
        if store_url.scheme_of(location) in ("http", "https"):
            projector = _open_sidecar(location, basis, opened)
        elif store_url.scheme_of(location) or location.endswith(".npz") or Path(location).exists():
            projector = _open_model(location, basis, topic)
        else:
            raise StoreError(f"there is no file {location}; if it is a sidecar's address, write http://{location}")
        files = files._replace(dimensions=projector.dimensions, names=projector.names, impute=projector.impute)
        rows = open_rows(file, files._replace(others=output.suffix in TABLES))
        print_notes(rows)
        opened.enter_context(threadpool_limits(1))  # so that results have the same bits as from a sidecar
        done = 0  # vectors
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
    console().print(f"{done:,} vectors projected by {projector.description}, written to {output}")


def _open_model(location: str, basis: Basis, topic: str | None) -> Projector:
    """Open the model of a file, or the newest model of a store."""
    published = read_model(location, topic)
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
        project=project,
    )


def _open_sidecar(url: str, basis: Basis, opened: ExitStack) -> Projector:
    """Open the model of a sidecar; its version is used for the whole file, even if newer versions appear."""
    with naming_the_extra("a sidecar's URL", "client"):
        from streampca.client import Client
    client = opened.enter_context(Client(url, token=os.environ.get("STREAMPCA_TOKEN")))
    about = client.model()
    version: int = about["version"]

    def project(vectors: Array) -> tuple[Array, Array]:
        answer = client.project(vectors, basis=basis, version=version)
        return answer.coordinates, answer.residual

    return Projector(
        description=f"version {version} of {url}",
        dimensions=about["dimensions"],
        components=about["components"],
        names=about.get("names"),
        impute=about["settings"].get("missing") == "impute",
        project=project,
    )
