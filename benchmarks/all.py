"""Every benchmark, one after the other, and the page that shows them: `python -m benchmarks.all` (`make bench`).

Each benchmark writes its own results; this puts them together as docs/performance.md, and prints the table of
all bars. Names of benchmarks run only those; `--write` runs none. On two cores it takes an hour.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from benchmarks import bars

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
PARTS = (
    "accuracy",
    "speed",
    "decoding",
    "daemon",
    "stages",
    "checkpoints",
    "memory",
    "serving",
    "start",
    "scaling",
    "curves",
)

_HEAD = """# Performance

What a worker and a sidecar cost, and how that was measured. Every speed is a ratio of things measured in turn in one
run; the times beside them are of one small machine, and are there to make the ratios concrete. `make bench` measures
everything anew and rewrites this page; `python -m benchmarks.<name>` does one part.

![µs a message against d, k, partitions and the length of a stretch](images/cost.png)

## What we ask of ourselves

"""

_WHY = """

### What the missed ones would take

- **64 × 8.** In large batches IncrementalPCA needs but some 3 µs a message, and a sixth of that is less than
  Algorithm 1's recursion takes for 18 columns alone. With so few dimensions the work of size K outweighs that
  of size d, the products.
- **Algorithm 1 in NumPy** is timed with k columns, ours with the k + 10 that accuracy takes. In double
  precision the products alone (*limit* below) need about an eighth of its time, or more, from 3072 dimensions
  on.
- **784 × 20 in double precision.** The products alone take a twelfth of IncrementalPCA's time by NumPy's BLAS,
  and nearly a twentieth at the processor's peak.
- **confluent-kafka** reads a message in less time than it takes to learn it. One thread of a worker learns, and
  for 0.7 of that rate would have to be done, with all around it, in 1.4 times what reading alone takes. More
  workers share the work where there are processors for them.
- **Two workers** have the broker on the same two cores, and each reads and decodes in a thread of its own: the better
  one worker uses both, the less is left for a second.

"""


def main() -> None:
    """Run, assemble, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="part", help=", ".join(PARTS))
    parser.add_argument("--write", action="store_true", help="only write the page")
    given = parser.parse_args()
    failed = [] if given.write else [part for part in given.parts or PARTS if not ran(part)]
    PAGE.write_text(page(), encoding="utf-8")
    print(bars.table(bars.recorded()))
    if failed:
        sys.exit(f"these ended with an error: {', '.join(failed)}")


def ran(part: str) -> bool:
    """Whether a benchmark ended well; it prints as it goes."""
    print(f"\n== {part} ==", flush=True)
    return subprocess.run([sys.executable, "-m", f"benchmarks.{part}"], cwd=ROOT, check=False).returncode == 0  # noqa: S603


def page() -> str:
    """docs/performance.md."""
    found = [bars.RESULTS / f"{part}.md" for part in PARTS]
    parts = [_lowered(path.read_text(encoding="utf-8")) for path in found if path.exists()]
    return _HEAD + bars.table(bars.recorded()) + _WHY + "\n".join(parts)


def _lowered(text: str) -> str:
    """Headings one level down."""
    return re.sub(r"^#", "##", text, flags=re.MULTILINE)


if __name__ == "__main__":
    main()
