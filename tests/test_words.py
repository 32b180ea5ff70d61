"""Words that readers stumbled over stay out of code, messages and documentation; each has a plainer one."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSTEAD = {
    r"told|tells": "log, report, raise, say",
    r"anew|afresh": "again, from the start",
    r"of late": "recent, recently",
    r"put aside": "rejected, sent to the dead-letter topic",
    r"go(es)? on|going on|went on": "continue, resume",
    r"(is|are|was) had": "is loaded, is read",
    r"by and by": "gradually",
    r"of whatever": "of any",
    r"what is kept of": "cached",
    r"hears? of": "learn of, receive",
    r"people who": "users",
}
KINDS = ("*.py", "*.md", "*.yml", "*.yaml", "*.js", "*.html", "Makefile", "docker/Dockerfile", "pyproject.toml")


def test_plain_words() -> None:
    files = subprocess.run(["git", "ls-files", *KINDS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [
        f"{file}:{number}: “{word[0]}”, rather: {plain}"
        for file in files.split()
        if "uplot" not in file and file != "tests/test_words.py"
        for number, line in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), 1)
        for words, plain in INSTEAD.items()
        if (word := re.search(rf"\b({words})\b", line.replace("_", " "), re.IGNORECASE))
    ]
    assert not found, "\n".join(found)
