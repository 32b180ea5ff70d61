"""The site of these pages, made by Sphinx: `make site`."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from streampca.version import __version__

project, release, language = "streampca", __version__, "en"
repository = "https://github.com/streampca/streampca"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
html_theme, html_title = "furo", "streampca"
html_theme_options = {"source_repository": repository, "source_branch": "main", "source_directory": "docs/"}
exclude_patterns = ["examples"]
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"


def _to_repository(app: object, name: str, source: list[str]) -> None:
    """A link that leaves these pages leads to the repository."""
    top = re.escape("../" * (1 + name.count("/")))
    source[0] = re.sub(rf"(?<!\!)(\[[^\]]*\])\({top}([^)]+)\)", rf"\1({repository}/blob/main/\2)", source[0])


def setup(app: object) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _to_repository)  # type: ignore[attr-defined]
