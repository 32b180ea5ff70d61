"""What is around the code: the site of the pages, workflows, templates, citation, and the package's metadata."""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from streampca.version import __version__
from tests.command_line import succeeded
from tests.java_server import unavailable

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": [GITHUB / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "feature.yml")],
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Links, anchors, formulas and docstrings; the reference has all names, and pages load nothing from elsewhere."""
    if shutil.which("npm") is None:
        unavailable("npm fetches the scripts that draw formulas and diagrams")
    succeeded(sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", ROOT / "docs", tmp_path)
    reference = (tmp_path / "python.html").read_text()
    for name in (
        "StreamingPCA.partial_fit",
        "StreamingPCA.components_",
        "merge",
        "Model.project",
        "client.Client.score",
    ):
        assert f'id="streampca.{name}"' in reference
    assert not re.findall(r'href="\.\./[^"]*"', (tmp_path / "architecture.html").read_text())
    elsewhere = re.compile(r'<script[^>]*src="https?:|<link[^>]*stylesheet[^>]*href="https?:|//[^"\s]+\.m?js\b')
    for page in tmp_path.glob("*.html"):
        assert not elsewhere.findall(page.read_text())
    front = (tmp_path / "index.html").read_text()
    assert "make demo" in front
    assert "_images/page.png" in front


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_match_their_schemas(schema: str) -> None:
    check = Path(sysconfig.get_path("scripts")) / "check-jsonschema"
    succeeded(check, "--builtin-schema", f"vendor.{schema}", *SCHEMAS[schema])


def test_the_steps_of_workflows_are_make_targets_or_scripts() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = [words for path in WORKFLOWS for words in re.findall(r"run: make ([^\n$]+)", path.read_text())]
    assert called
    assert {word for words in called for word in words.split() if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)} <= targets


def test_publishing_needs_a_variable_of_the_owner() -> None:
    jobs = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text())["jobs"]
    assert jobs.pop("tests") == {"uses": "./.github/workflows/ci.yml"}
    assert jobs["build"]["needs"] == "tests"
    assert jobs.pop("build").keys().isdisjoint({"if", "environment"})
    for job in jobs.values():
        assert job["if"].startswith("vars.")
        assert job["environment"] == "release"
        assert job["needs"] == "build"


def test_workflows_give_nothing_away() -> None:
    """zizmor knows what makes workflows unsafe: tokens that stay on disk, texts of others that become commands."""
    zizmor = Path(sysconfig.get_path("scripts")) / "zizmor"
    succeeded(zizmor, "--quiet", "--offline", ROOT)


def test_versions_agree() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    latest = [
        name for name in files if name.endswith((".yml", ".yaml", ".md")) and ":latest" in (ROOT / name).read_text()
    ]
    assert not latest


@pytest.mark.parametrize(("tag", "refusal"), [("v9.9.9", "another version"), (f"v{__version__}", "no date")])
def test_a_tag_is_released_if_version_and_changelog_say_so(tag: str, refusal: str) -> None:
    if refusal == "no date" and "(unreleased)" not in (ROOT / "CHANGELOG.md").read_text():
        pytest.skip("this version is released")
    outcome = subprocess.run(["make", "release-check", f"TAG={tag}"], cwd=ROOT, capture_output=True, text=True)
    assert outcome.returncode
    assert refusal in outcome.stderr
