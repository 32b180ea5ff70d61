"""Writes the lock files: `python -m tests.locks` (`make lock`) pins the newest versions that pyproject.toml allows.

They hold for every supported Python version and system: a line that applies to some of them has a marker.
"""

import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
UV = Path(sysconfig.get_path("scripts")) / "uv"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IMAGE_EXTRAS = ("arrow", "avro", "msk", "oauth", "object-store", "otel", "protobuf", "worker")
SIDECAR_EXTRAS = ("object-store",)
DEMO_EXTRAS = ("worker",)

ALL, DEMO, IMAGE, SIDECAR, BUILD, QUIX = (
    ROOT / name
    for name in (
        "requirements.lock", "demo.lock", "docker/requirements.lock", "docker/sidecar.lock", "docker/build.lock",
        "tests/quix.lock",  # of a tutorial, in an environment of its own
    )
)  # fmt: skip
_SAME_VERSIONS = ("--constraints", str(ALL))


def _extras(names: tuple[str, ...]) -> tuple[str, ...]:
    return (*_SAME_VERSIONS, *(f"--extra={name}" for name in names))


_OPTIONS = {
    ALL: ("--all-extras",),
    DEMO: _extras(DEMO_EXTRAS),
    IMAGE: _extras(IMAGE_EXTRAS),
    SIDECAR: _extras(SIDECAR_EXTRAS),
    BUILD: _SAME_VERSIONS,
    QUIX: (),
}
_REQUIREMENTS = {BUILD: PROJECT["build-system"]["requires"], QUIX: ["quixstreams>=3.27,<4"]}  # others: pyproject.toml


def resolve(*options: str, requirements: str | None = None) -> str:
    """The versions and hashes for pyproject.toml, or for `requirements`; CalledProcessError if there are none."""
    command = [UV, "pip", "compile", "--quiet", "--no-config", "--universal", "--fork-strategy=fewest"]
    command += ["--python-version=3.11", "--generate-hashes", "--no-header", *options]
    command += ["-" if requirements else "pyproject.toml"]
    return subprocess.run(command, input=requirements, capture_output=True, text=True, cwd=ROOT, check=True).stdout


def locked(lock: Path, *options: str) -> str:
    """A lock's text when it is made again; versions that it has stay unless `--upgrade` is among the options."""
    requirements = "\n".join(_REQUIREMENTS.get(lock, [])) or None
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / lock.name
        if lock.exists():
            copy.write_bytes(lock.read_bytes())
        resolve(*_OPTIONS[lock], f"--output-file={copy}", *options, requirements=requirements)
        return copy.read_text(encoding="utf-8")


def pins(lock: Path) -> dict[str, str]:
    """The version of each package in a lock."""
    lines = [line.split()[0] for line in lock.read_text(encoding="utf-8").splitlines() if line[:1].isalnum()]
    return dict(line.split("==") for line in lines)


if __name__ == "__main__":
    for path in _OPTIONS:  # the others follow the first
        path.write_text(locked(path, *(sys.argv[1:] if path in (ALL, QUIX) else [])), encoding="utf-8")
