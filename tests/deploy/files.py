"""Compose file and Dockerfile as data."""

import platform
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE = ROOT / "docker-compose.yml"


def compose() -> dict[str, Any]:
    """docker-compose.yml with its variables at their defaults."""
    text = re.sub(r"(?<!\$)\$\{\w+:-([^}]*)\}", r"\1", COMPOSE.read_text(encoding="utf-8"))
    assert not re.findall(r"(?<!\$)\$[{A-Za-z_]", text), "a variable without a default"
    return yaml.load(text, yaml.CSafeLoader)


def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]


def streampca_services() -> dict[str, dict[str, Any]]:
    """The services that run streampca's image."""
    return {name: service for name, service in services().items() if service["image"].startswith("streampca:")}


def stages() -> list[list[tuple[str, str]]]:
    """The Dockerfile's stages: the instructions and arguments of each, with the build's at their defaults."""
    found: list[list[tuple[str, str]]] = []
    defaults: dict[str, str] = {}
    for instruction, rest in _instructions():
        if instruction == "ARG":
            defaults.update([rest.split("=", 1)])
            continue
        if instruction == "FROM":
            found.append([])
        found[-1].append((instruction, re.sub(r"\$\{(\w+)\}", lambda m: defaults.get(m[1], m[0]), rest)))
    return found


def _instructions() -> Iterator[tuple[str, str]]:
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if line.strip():
            instruction, _, rest = line.partition(" ")
            yield instruction, rest.strip()


def image_environment(architecture: str = "amd64") -> dict[str, str]:
    """The variables of the last stage, including those of the stages it is made from, for the architecture."""
    named = {name: stage for stage in stages() for _, _, name in [stage[0][1].partition(" AS ")] if name}
    chain, stage = [stages()[-1]], stages()[-1]
    while (parent := stage[0][1].split()[0].replace("${TARGETARCH:-amd64}", architecture)) in named:
        stage = named[parent]
        chain.insert(0, stage)
    pairs = [pair for each in chain for name, rest in each if name == "ENV" for pair in shlex.split(rest)]
    return dict(pair.split("=", 1) for pair in pairs)


def baseline() -> dict[str, str]:
    """The variables that select the processor of this architecture for which numba compiles."""
    architecture = {"aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), "amd64")  # by BuildKit's names
    return {name: value for name, value in image_environment(architecture).items() if name.startswith("NUMBA_CPU_")}


def last_argument(instruction: str) -> str:
    """The argument of the last instruction of this name."""
    return [rest for stage in stages() for name, rest in stage if name == instruction][-1]
