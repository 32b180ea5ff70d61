"""The code of docs/estimator.md runs, from top to bottom."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.datasets

mpl = pytest.importorskip("matplotlib")  # in the extra `experiments`

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "estimator.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On random images instead of the download."""
    pictures = np.random.default_rng(0).integers(0, 256, (700, 784)).astype(np.float64)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda *_, **__: SimpleNamespace(data=pictures))
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
    exec(compile(code, "docs/estimator.md", "exec"), {})  # noqa: S102 - our own page
    mpl.pyplot.close("all")
    likelihoods, unusual, shape, of_merged = capsys.readouterr().out.splitlines()
    assert len(likelihoods.strip("[]").split()) == 5
    assert len(unusual.strip("[]").split()) == 10
    assert shape.startswith("(700, 10)")
    learned, share = of_merged.split()
    assert (learned, float(share)) == ("700", pytest.approx(1, abs=0.1))
    assert (tmp_path / "mnist-components.png").read_bytes().startswith(b"\x89PNG")
