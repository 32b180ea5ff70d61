"""The runbook knows every alert, and every sentence that the code can end with or warn of; and none that it cannot."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import streampca
from streampca.stream.codec import REASONS
from tests.monitoring.prometheus import DOCKER
from tests.monitoring.test_rules import ALERTS

PAGE = (DOCKER.parent / "docs" / "runbook.md").read_text()
CODE = Path(streampca.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(CODE.rglob("*.py"))}
ERRORS = {
    node.name
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_")
} - {"VectorError"}  # of a single record: told by its reason
LOUD = {"warning", "error", "exception"}
HOLE = "…"
LITTLE = 9  # letters


def template(node: ast.AST) -> str | None:
    """A text with … for what is filled in; None for what is no text."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(template(part) or HOLE for part in node.values)
        case ast.BinOp(op=ast.Add()):
            return (template(node.left) or HOLE) + (template(node.right) or HOLE)
    return None


def pieces(text: str) -> list[str]:
    return [piece for piece in re.split(rf"\s*{HOLE}+\s*", text) if piece.strip(" :;,()")]


def matches(quote: str, text: str) -> bool:
    """Whether the fixed parts of a quotation follow each other in a text of the code; few must be all of it."""
    if len("".join(pieces(quote))) <= LITTLE:
        return re.sub(rf"{HOLE}+", HOLE, text) == quote
    at = 0
    for piece in pieces(quote):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def ends_with() -> Iterator[str]:
    """What errors are made with, where that says anything by itself."""
    for path, tree in TREES.items():
        if path.parts[-2:] == ("stores", "memory.py"):  # for tests and the demo: its faults are scripted
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
                texts = [text for argument in node.args if (text := template(argument))]
                yield from (text for text in texts if len("".join(pieces(text))) > LITTLE)


def warns_of() -> Iterator[str]:
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOUD:
                yield from filter(None, [template(node.args[0])] if node.args else [])


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


QUOTES = re.findall(r"^\| `([^`]+)` \|", section("Messages") + section("Lines of the log"), re.MULTILINE)
TEXTS = sorted({text for tree in TREES.values() for node in ast.walk(tree) if (text := template(node))})


@pytest.mark.parametrize("name", [alert["alert"] for alert in ALERTS])
def test_alerts_have_their_sections(name: str) -> None:
    found = re.search(rf"^### {name}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    assert "**Do:**" in found[1]


def test_sections_of_alerts_have_alerts() -> None:
    assert re.findall(r"^### (Streampca\w+)$", PAGE, re.MULTILINE) == [alert["alert"] for alert in ALERTS]


@pytest.mark.parametrize("text", sorted(set(ends_with())))
def test_what_ends_a_command_is_told(text: str) -> None:
    assert any(matches(quote, text) for quote in QUOTES)


@pytest.mark.parametrize("text", sorted(set(warns_of())))
def test_what_is_warned_of_is_told(text: str) -> None:
    assert any(matches(quote, text) for quote in QUOTES)


@pytest.mark.parametrize("quote", QUOTES)
def test_what_is_told_can_be_said(quote: str) -> None:
    assert quote in REASONS or any(matches(quote, text) for text in TEXTS)


def test_reasons_are_told() -> None:
    assert set(REASONS) <= set(QUOTES)


def test_links_within_the_page_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings
