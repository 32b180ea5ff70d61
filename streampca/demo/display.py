"""Texts of the demo: its addresses, the first projection, and its progress, a line every few seconds."""

from pathlib import Path
from typing import Any

from streampca.files.synthetic import Truth
from streampca.fold.model_file import PublishedModel


def addresses(broker: str, topics: str, port: int, metrics_port: int, store: str, folder: Path) -> str:
    """The addresses of all parts."""
    return (
        f"page     http://127.0.0.1:{port}/\n"
        f"broker   {broker} (in memory), topics {topics}\n"
        f"API      http://127.0.0.1:{port}/docs\n"
        f"model    http://127.0.0.1:{port}/v1/model\n"
        f"metrics  http://127.0.0.1:{metrics_port}/metrics (worker)  http://127.0.0.1:{port}/metrics (sidecar)\n"
        f"store    {store}\n"
        f"logs     {folder}/*.log\n"
    )


def projection(url: str, answer: dict[str, Any], request_file: Path, elapsed: float) -> str:
    """The first projection and the curl command that repeats it."""
    coordinates = ", ".join(f"{number:.3f}" for number in answer["coordinates"][0])
    return (
        f"first projection after {elapsed:.1f} s, by model version {answer['version']}:\n"
        f"  coordinates [{coordinates}]\n"
        f"  residual    {answer['residual'][0]:.3f}\n"
        "the same with curl:\n"
        f"  curl -s {url} -H 'content-type: application/json' -d @{request_file}\n"
    )


def progress(elapsed: float, model: PublishedModel | None, rate: float, truth: Truth | None, log: Path) -> str:
    """The figures of the newest model; before the first, what the worker does by its log file."""
    if model is None:
        return f"{elapsed:5.1f} s  {_phase(log)}"
    components, loss = model.model.components, model.loss_ewma
    figures = {
        "learned": f"{model.version:,} ({rate:,.0f} per second)",
        "loss ratio": "–" if loss is None else f"{loss:.4f}" + (f" (optimum: {truth.loss_ratio:.4f})" if truth else ""),
        "explained variance": f"{model.model.explained_variance_ratio.sum():.2%}",
    }
    if truth is not None:
        angle = truth.largest_angle(components)
        figures["subspace found"] = f"{truth.coverage(components):.3%} (largest angle {angle:.2f}°)"
    return f"{elapsed:5.1f} s  " + "  ".join(f"{name}: {value}" for name, value in figures.items())


def _phase(log: Path) -> str:
    text = log.read_text(encoding="utf-8")
    is_compiling = "compiling kernels" in text and "kernels compiled" not in text
    return "compiling, once on this machine …" if is_compiling else "starting …"
