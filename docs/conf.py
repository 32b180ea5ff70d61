"""The site of these pages, made by Sphinx: `make site`."""

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from streampca.version import __version__

ROOT = Path(__file__).parents[1]

# Scripts that pages load, from npm: package, version, SHA-256 of its archive, and what the site needs of it. The site
# has copies of them, so its formulas and diagrams need no other host.
SCRIPTS = [
    (
        "mathjax",
        "3.2.2",
        "1b9c0a1c44df864e915690558e72adb9cc5203360daefd385084ced3b6c64c09",
        ["package/es5"],
    ),
    (
        "mermaid",
        "11.17.2",
        "6ad2f42c3fc26bbf9e45cbb6d11898972573ea52b33a5f4ff51952899f950ffd",
        ["package/dist/mermaid.esm.min.mjs", "package/dist/chunks/mermaid.esm.min"],
    ),
]
SCRIPTS_FOLDER = ROOT / "build" / "site-scripts"

project, release, language = "streampca", __version__, "en"
repository = "https://github.com/streampca/streampca"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
html_theme, html_title = "furo", "streampca"
html_theme_options = {"source_repository": repository, "source_branch": "main", "source_directory": "docs/"}
html_static_path = [str(SCRIPTS_FOLDER)]
mathjax_path = "mathjax/package/es5/tex-mml-chtml.js"
mermaid_use_local = "mermaid/package/dist/mermaid.esm.min.mjs"
mermaid_height = "auto"
exclude_patterns = ["examples"]
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"


def _fetch_script(package: str, version: str, sha256: str, members: list[str]) -> None:
    """Fetch a package from npm and keep these members of it, unless they are there."""
    folder = SCRIPTS_FOLDER / package
    mark = folder / ".sha256"  # is written last, so a folder that has it is complete
    if mark.exists() and mark.read_text() == sha256:
        return
    shutil.rmtree(folder, ignore_errors=True)
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("the site needs npm, which fetches what draws formulas and diagrams: install Node.js")
    with tempfile.TemporaryDirectory() as temporary:
        command = [npm, "pack", "--silent", f"{package}@{version}"]
        subprocess.run(command, cwd=temporary, check=True, capture_output=True)  # noqa: S603, each word is known
        archive = Path(temporary) / f"{package}-{version}.tgz"
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != sha256:
            raise RuntimeError(f"{archive.name} has the SHA-256 {found}, not {sha256}")
        with tarfile.open(archive) as tar:
            needed = [member for member in tar.getmembers() if member.name.startswith(tuple(members))]
            tar.extractall(folder, members=needed, filter="data")
    mark.write_text(sha256)


def _prepare_page(app: object, name: str, source: list[str]) -> None:
    """Put README into the front page. Let each link that leaves these pages lead to the repository."""
    if name == "index":
        source[0] = source[0].replace("README", _read_readme(), 1)
    top = re.escape("../" * (1 + name.count("/")))
    source[0] = re.sub(rf"(?<!\!)(\[[^\]]*\])\({top}([^)]+)\)", rf"\1({repository}/blob/main/\2)", source[0])


def _read_readme() -> str:
    """Return README without its list of pages, with links and pictures as the pages of this folder have them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Documentation\n")[0]
    text = re.sub(r"\]\((?!docs/|https?:|#)", "](../", text)
    text = text.replace("](docs/", "](")
    return re.sub(r'<p align="center"><img src="docs/([^"]+)"[^>]*?alt="([^"]+)"></p>', r"![\2](\1)", text)


def setup(app: object) -> None:
    """Called by Sphinx."""
    for script in SCRIPTS:
        _fetch_script(*script)
    app.connect("source-read", _prepare_page)  # type: ignore[attr-defined]
