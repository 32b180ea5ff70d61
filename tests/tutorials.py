"""The commands of the tutorials, for the test that runs them and for the pictures that they show."""

import os
import re
import sys
from pathlib import Path

from tests.command_line import succeeded, variables
from tests.docs_tables import DOCS

TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))


def at_addresses(page: Path, bootstrap: str, port: int, metrics_port: int, second_metrics_port: int) -> str:
    """The text of a tutorial with the addresses of this broker, and of a sidecar and members at these ports."""
    text = replaced(page.read_text(), {
        "127.0.0.1:9094": bootstrap, "localhost:8000": f"localhost:{port}",
        "streampca worker 2>": "STREAMPCA_METRICS_PORT=0 streampca worker 2>",
    })  # fmt: skip
    return text.replace("localhost:8020", f"localhost:{metrics_port}").replace("8021", str(second_metrics_port))


def blocks_of(text: str) -> list[tuple[str, str]]:
    """The language and the lines of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def script_of(text: str, folder: Path) -> str:
    """The commands of a tutorial, whose programs are written into the folder."""
    blocks = blocks_of(text)
    for language, lines in blocks:
        if language == "python":
            (folder / lines.split()[1]).write_text(lines)
    return "".join(lines for language, lines in blocks if language == "sh")


def replaced(text: str, names: dict[str, str]) -> str:
    """The text with other names, each of which must be in it."""
    for there, here in names.items():
        assert there in text
        text = text.replace(there, here)
    return text


def in_a_shell(script: str, folder: Path, **settings: object) -> str:
    """What the commands print; a loop ends the script if `running` says that a process has ended. At last all end."""
    script = script.replace("running || break; sleep 1;", "running || exit 1; sleep 0.2;")
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = f"set -e; trap 'kill $(jobs -p) || :; wait' EXIT\n{script}"
    return succeeded("bash", "-c", script, env=os.environ | path | variables(settings), cwd=folder)
