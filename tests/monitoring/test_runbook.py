"""The runbook has a section for every alert, and quotes only messages that the code contains."""

import ast
import re
from pathlib import Path

import pytest

import streampca
from streampca.stream.codec import REASONS
from tests.monitoring.prometheus import DOCKER
from tests.monitoring.test_rules import ALERTS

PAGE = (DOCKER.parent / "docs" / "runbook.md").read_text()
CODE = Path(streampca.__file__).parent
HOLE = "…"
SHORT = 9  # characters


def template(node: ast.AST) -> str | None:
    """The text of a string expression, with … for interpolated values; None for other expressions."""
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
    """Whether the text contains the quotation's fixed parts in order; a short quotation must be the whole text."""
    if len("".join(pieces(quote))) <= SHORT:
        return re.sub(rf"{HOLE}+", HOLE, text) == quote
    at = 0
    for piece in pieces(quote):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


QUOTES = re.findall(r"^\| `([^`]+)` \|", section("Messages") + section("Lines of the log"), re.MULTILINE)


@pytest.fixture(scope="module")
def texts() -> set[str]:
    """The strings of the code. Not at import, which takes a second: every test process imports every module."""
    trees = (ast.parse(path.read_text()) for path in CODE.rglob("*.py"))
    return {text for tree in trees for node in ast.walk(tree) if (text := template(node))}


@pytest.mark.parametrize("name", [alert["alert"] for alert in ALERTS])
def test_every_alert_has_a_section(name: str) -> None:
    found = re.search(rf"^### {name}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    assert "**Do:**" in found[1]


def test_every_section_of_an_alert_has_an_alert() -> None:
    assert re.findall(r"^### (Streampca\w+)$", PAGE, re.MULTILINE) == [alert["alert"] for alert in ALERTS]


@pytest.mark.parametrize("quote", QUOTES)
def test_quoted_messages_are_in_the_code(quote: str, texts: set[str]) -> None:
    assert quote in REASONS or any(matches(quote, text) for text in texts)


def test_every_reason_has_a_row() -> None:
    assert set(REASONS) <= set(QUOTES)


def test_links_within_the_page_have_targets() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings
