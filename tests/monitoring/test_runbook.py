"""The runbook has a section for every alert and every reason of dead letters, and quotes lines that the code logs."""

import re
from pathlib import Path

import streampca
from streampca.fold.codec import REASONS
from tests.monitoring.prometheus import DOCKER
from tests.monitoring.test_rules import ALERTS

PAGE = (DOCKER.parent / "docs" / "runbook.md").read_text()


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def test_every_alert_has_a_section() -> None:
    assert re.findall(r"^### (Streampca\w+)$", PAGE, re.MULTILINE) == [alert["alert"] for alert in ALERTS]


def test_every_reason_has_a_row() -> None:
    assert re.findall(r"^\| `(\w+)` \|", section("Reasons of dead letters"), re.MULTILINE) == list(REASONS)


def test_quoted_lines_are_in_the_code() -> None:
    code = "".join(path.read_text() for path in Path(streampca.__file__).parent.rglob("*.py"))
    quoted = re.findall(r"`((?!streampca|ls )[a-z]+ [a-z, ]+?)(?: …)?`", PAGE)
    assert len(quoted) > 10
    assert [line for line in quoted if f'"{line}' not in code] == []


def test_links_within_the_page_have_targets() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings
