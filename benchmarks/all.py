"""Every benchmark, one after the other: `python -m benchmarks.all` (`make bench`).

Each writes its tables into docs/performance.md. Names run only those: `python -m benchmarks.all speed start`.
All of them take about an hour on two cores.
"""

import argparse
import subprocess
import sys

from benchmarks.children import ROOT
from benchmarks.report import PAGE, PARTS, block


def main() -> None:
    """Run the benchmarks and print the table of bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="part", help=", ".join(PARTS))
    failed = [part for part in parser.parse_args().parts or PARTS if not succeeds(part)]
    print(f"\n{block(PAGE.read_text(encoding='utf-8'), 'bars')}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def succeeds(part: str) -> bool:
    """Run one benchmark, which prints its progress; whether its exit code is 0."""
    print(f"\n== {part} ==", flush=True)
    return subprocess.run([sys.executable, "-m", f"benchmarks.{part}"], cwd=ROOT, check=False).returncode == 0  # noqa: S603


if __name__ == "__main__":
    main()
