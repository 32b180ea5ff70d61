"""README and docs/ match the code: tables, links, commands, examples."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.datasets
from typer.main import get_command

from streampca.cli.app import app as command_line
from tests.docs_tables import DOCS, TABLES, block, flat
from tests.java_server import unavailable
from tests.kafka_broker import Broker
from tests.ports import free_ports
from tests.tutorials import TUTORIALS, at_addresses, blocks_of, in_a_shell, replaced, script_of

ROOT = DOCS.parent
README = ROOT / "README.md"
PROMISES: dict[str, dict[str, str]] = json.loads((ROOT / "tests" / "promises.json").read_text())
_PROMISE = re.compile(r"\b(never|always|no|any|exactly)\b", re.IGNORECASE)
PAGES = [README, ROOT / "CONTRIBUTING.md", *ROOT.glob("*/README.md"), *sorted(DOCS.rglob("*.md"))]
_NUMBER = re.compile(r"(?<![\w@.-])\d+(?:\.\d+)?")


@pytest.mark.parametrize("name", TABLES)
def test_tables_match_the_code(name: str) -> None:
    page, make = TABLES[name]
    assert block(name).findall(page.read_text()) == [make()], "run: python -m tests.docs_tables"


@pytest.mark.parametrize("page", PROMISES)
def test_each_promise_is_named_by_a_test(page: str) -> None:
    """A sentence with one of these words."""
    sentences = re.split(r"(?<=[.:])\s+(?=[A-Z*`])|\n\n|\n- |\|", (DOCS / page).read_text())
    promises = [" ".join(sentence.split()) for sentence in sentences if _PROMISE.search(sentence)]
    unnamed = [promise for promise in promises if not any(part in promise for part in PROMISES[page])]
    assert not unnamed, "name its test in tests/promises.json"
    for part, test in PROMISES[page].items():
        path, _, name = test.partition("::")
        assert sum(part in promise for promise in promises) == 1, part
        assert f"\ndef {name}(" in (ROOT / "tests" / path).read_text(), test


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 130


def test_the_readme_has_one_command_that_runs_and_one_that_tests_which_ci_calls() -> None:
    text = README.read_text()
    commands = re.findall(r"^    (make .*)$", text, re.MULTILINE)
    assert commands == ["make demo", "make test"]
    assert commands[-1] in (ROOT / ".ci" / "run").read_text().splitlines()
    assert all(f"\n| `{command}` |" in text for command in commands), "what it needs, and how long it takes"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_documented_commands_and_options_exist() -> None:
    commands = flat(get_command(command_line).commands)
    line = r"^(?:\$ |[A-Z]+ = \")?(?:STREAMPCA_\S+ )*streampca ((?:dead-letters )?[\w-]+)(.*)$"
    for page in [*PAGES, *(DOCS / "examples").glob("*.py")]:
        for name, rest in re.findall(line, page.read_text(), re.MULTILINE):
            assert name in commands, f"{page.name}: streampca {name}"
            known = {option for parameter in commands[name].params for option in parameter.opts}
            for option in re.findall(r"(?<=\s)--[a-z-]+", rest):
                assert option in known, f"{page.name}: streampca {name} {option}"


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"^(?: {4})?make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= targets


@pytest.mark.slow
def test_python_examples_run(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert examples
    for example in examples:
        subprocess.run([sys.executable, "-W", "error", "-c", example], cwd=tmp_path, check=True, timeout=120)


@pytest.mark.slow
def test_the_estimators_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On random images instead of the download."""
    mpl = pytest.importorskip("matplotlib")  # in the extra `experiments`
    pictures = np.random.default_rng(0).integers(0, 256, (700, 784)).astype(np.float64)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda *_, **__: SimpleNamespace(data=pictures))
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    code = "\n".join(
        re.findall(r"^```python\n(.*?)^```", (DOCS / "estimator.md").read_text(), re.MULTILINE | re.DOTALL)
    )
    exec(compile(code, "docs/estimator.md", "exec"), {})  # noqa: S102 - our own page
    mpl.pyplot.close("all")
    likelihoods, unusual, shape, of_merged = capsys.readouterr().out.splitlines()
    assert len(likelihoods.strip("[]").split()) == 5
    assert len(unusual.strip("[]").split()) == 10
    assert shape.startswith("(700, 10)")
    learned, share = of_merged.split()
    assert (learned, float(share)) == ("700", pytest.approx(1, abs=0.1))
    assert (tmp_path / "mnist-components.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.broker
def test_the_commands_of_use_it_run(broker: Broker, topic: str, tmp_path: Path) -> None:
    """In a shell, as they stand except for addresses and names; worker and sidecar in the background."""
    rows = (f"{20 + i % 7},{48 + i % 5},{1013 + i % 3}" for i in range(900))
    (tmp_path / "readings.csv").write_text("\n".join(["temp,hum,press", *rows]))
    section = README.read_text().partition("## Use it")[2].partition("\n## ")[0]
    text = re.sub(r"^ {4}pip .*", "", section[: section.index("\n- ")], flags=re.MULTILINE)
    script = "\n".join(re.findall(r"^ {4}(.*)", text, re.MULTILINE))
    [port] = free_ports(1)
    script = replaced(script, {
        "broker:9092": broker.bootstrap, "=readings-dead": f"={topic}-dead", "=readings": f"={topic}",
        "/var/lib/streampca": str(tmp_path / "store"), "localhost:8000": f"localhost:{port}",
    })  # fmt: skip
    script = re.sub(r"^(streampca (?:worker|serve|transform)) .*", r"\1 &", script, flags=re.MULTILINE)
    ready = f"until curl -sf localhost:{port}/readyz; do kill -0 $(jobs -p); sleep 0.2; done\n"
    output = in_a_shell(script.replace("curl ", f"{ready}curl ", 1), tmp_path, port=port, metrics_port=0)
    assert "all checks passed" in output
    answer = json.loads(re.findall(r'^.*({"version".*})', output, re.MULTILINE)[-1])
    assert (answer["version"] <= 900, len(answer["coordinates"][0])) == (True, 2)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_tutorials_run(page: Path, broker: Broker, tmp_path: Path) -> None:
    """Every line that a page shows is printed, in order: the same words, and numbers within 15 % or 0.06."""
    ports = free_ports(3)
    text = at_addresses(page, broker.bootstrap, *ports)
    script = script_of(text, tmp_path)
    if "quix/bin/pip" in script:
        script = re.sub(r"python -m venv quix .*", f"ln -s {find_quix()} quix", script)
    port, metrics_port, _ = ports
    output = in_a_shell(script, tmp_path, port=port, metrics_port=metrics_port)
    printed = map(figures, output.splitlines())  # each match continues behind the one before
    shown = [line for language, lines in blocks_of(text) if not language for line in lines.splitlines()]
    for words, numbers in map(figures, shown):
        near = pytest.approx(numbers, rel=0.15, abs=0.06)
        assert any(line == words and found == near for line, found in printed), (words, numbers, output)
    assert shown
    assert len(page.read_text().split()) <= 950


def find_quix() -> Path:
    """The environment of Quix Streams, which `make quix` makes. Without it the test is skipped, and fails in CI."""
    environment = Path(sys.prefix) / "quix"
    if not (environment / ".installed").exists():
        unavailable("make quix installs the stream processor of a tutorial")
    return environment


def figures(line: str) -> tuple[str, list[float]]:
    """Its words, and the numbers between them."""
    return _NUMBER.sub("#", line), [float(number) for number in _NUMBER.findall(line)]
