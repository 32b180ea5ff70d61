"""The wheel, installed into an environment of its own."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.command_line import succeeded

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    succeeded(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("streampca-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; its dependencies are this environment's packages."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    succeeded(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, env=bare_environment())
    (packages,) = folder.glob("lib/python*/site-packages")
    # On the path, but not as a site directory: its .pth files, such as an editable install's, have no effect.
    (packages / "needs.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder


def bare_environment() -> dict[str, str]:
    return {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "STREAMPCA_"))}


def run(installed: Path, *command: str) -> str:
    environment = bare_environment() | {"NUMBA_DISABLE_JIT": "1"}  # compiling takes longer than the rest
    return succeeded(installed / "bin" / command[0], *command[1:], cwd=installed, env=environment)


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as zipped:
        names = zipped.namelist()
        (metadata,) = [zipped.read(name).decode() for name in names if name.endswith("METADATA")]
    assert "streampca/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"streampca"}
    assert not [name for name in names if "test" in name or name.endswith((".pyc", ".nbi", ".nbc"))]
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "streampca").rglob("*.py")}
    page = {
        str(path.relative_to(ROOT)) for path in (ROOT / "streampca/sidecar/page/static").rglob("*") if path.is_file()
    }
    assert "streampca/sidecar/page/static/index.html" in page
    assert sources | page <= set(names)
    assert "License-Expression: Apache-2.0" in metadata
    links = re.findall(r'(?:\]\(|src=")([^)"]+)', metadata)
    assert len(links) > 30
    assert all(link.startswith("https://") for link in links)


def test_the_installed_command_works(installed: Path, tmp_path: Path) -> None:
    where = run(installed, "python", "-c", "import streampca; print(streampca.__file__)")
    assert Path(where.strip()).is_relative_to(installed)
    assert run(installed, "streampca", "--version").startswith("streampca 0.")
    assert "worker" in run(installed, "streampca", "--help")
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((300, 5)))
    model = tmp_path / "model.npz"
    run(installed, "streampca", "fit", str(tmp_path / "v.npy"), "-o", str(model), "--components", "2")
    assert '"version": 300' in run(installed, "streampca", "inspect", str(model), "--json")
    options = ("--topic", "t", "--dimensions", "3", "--components", "2")
    assert "no mistakes" in run(installed, "streampca", "check", *options)


def test_the_installed_sidecar_serves_its_page_and_writes_no_files(installed: Path, tmp_path: Path) -> None:
    (package,) = installed.glob("lib/python*/site-packages/streampca")
    folder = package / "sidecar" / "page" / "static"
    files = sorted(folder.rglob("*"))
    assert files
    process = subprocess.Popen(
        [str(installed / "bin" / "streampca"), "serve", "--topic", "t", "--store", str(tmp_path), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=installed,
        env=bare_environment(),
    )
    try:
        lines = (json.loads(line) for line in process.stderr)
        address = next(line["url"] for line in lines if line["event"] == "serving")
        assert httpx.get(address, timeout=60).content == (folder / "index.html").read_bytes()
        for file in files:
            if file.is_file():
                url = f"{address}/page/{file.relative_to(folder)}"
                assert httpx.get(url, timeout=60).status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert sorted(folder.rglob("*")) == files
