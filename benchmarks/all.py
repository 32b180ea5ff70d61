"""Every benchmark, one after the other: `python -m benchmarks.all` (`make bench`).

Each writes its tables into docs/performance.md and its bars into benchmarks/README.md; `streams` and `hard_streams`
write docs/accuracy.md and run only by name. Arguments select benchmarks: `python -m benchmarks.all speed start`.
"""

import argparse
import subprocess
import sys

from benchmarks.report import BARS, PAGE, PARTS
from benchmarks.workers import ROOT
from experiments.report import block, machine, write_block


def main() -> None:
    """Run the benchmarks and print the table of bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*PARTS, "streams", "hard_streams"]
    parser.add_argument("parts", nargs="*", choices=[*names, []], metavar="part", help=", ".join(names))
    parts = parser.parse_args().parts
    if not parts:
        write_block(PAGE, "machine", [machine()])
    failed = []
    for part in parts or PARTS:
        print(f"\n== {part} ==", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{part}"], cwd=ROOT, check=False).returncode:  # noqa: S603
            failed.append(part)
    print(f"\n{block(BARS.read_text(encoding='utf-8'), 'bars')}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
