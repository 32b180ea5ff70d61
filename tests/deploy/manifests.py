"""The Kubernetes manifests, built as `kubectl kustomize` does; `make helm-test` compares the two.

It knows what these manifests use of Kustomize: resources, components, JSON patches and merged mappings.
"""

import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy import files

Object = dict[str, Any]
FOLDER = files.ROOT / "docker" / "kubernetes"
OVERLAYS = ("object-store", "shared-disk")
COMPONENTS = ("monitoring", "autoscaling")  # with any overlay
TRANSFORM_AUTOSCALING = "transform-autoscaling"  # after the component of transform
WORKLOADS = ("Deployment", "StatefulSet")


def transform_of(overlay: str) -> str:
    """The component of transform for this overlay."""
    return f"transform-{overlay}"


def components_of(overlay: str) -> tuple[str, ...]:
    """All components that this overlay offers."""
    return (*COMPONENTS, transform_of(overlay), TRANSFORM_AUTOSCALING)


def built(overlay: str, *components: str) -> list[Object]:
    """The objects of an overlay together with components."""
    found = _accumulated(FOLDER / "overlays" / overlay, [])
    for component in components:
        found = _accumulated(FOLDER / "components" / component, found)
    return found


def of_kind(found: list[Object], *kinds: str) -> list[Object]:
    """The objects of these kinds."""
    return [o for o in found if o["kind"] in kinds]


def containers(found: list[Object]) -> dict[str, Object]:
    """The only container of each workload, with its pod's specification under `pod`."""
    pods = {o["metadata"]["name"]: o["spec"]["template"]["spec"] for o in of_kind(found, *WORKLOADS)}
    return {name: {**pod["containers"][0], "pod": pod} for name, pod in pods.items()}


def identity(found: Object) -> tuple[str, str]:
    """The kind and the name of an object."""
    return found["kind"], found["metadata"]["name"]


def listed(folder: Path) -> set[Path]:
    """The files that the folder's kustomization names."""
    file = _parsed(folder / "kustomization.yaml")[0]
    return {folder / p for p in file.get("resources", [])} | {
        folder / patch["path"] for patch in file.get("patches", [])
    }


def patched(found: Object, patch: Any) -> Object:
    """The object after a JSON patch (a list of operations) or a merge (a mapping)."""
    return _operated(found, patch) if isinstance(patch, list) else _merged(found, patch)


def _accumulated(folder: Path, found: list[Object]) -> list[Object]:
    """The objects so far and those of the folder, all patched as its kustomization says."""
    (file,) = _parsed(folder / "kustomization.yaml")
    assert file.keys() <= {"apiVersion", "kind", "resources", "components", "patches"}
    for path in (folder / name for name in file.get("resources", [])):
        found = _accumulated(path, found) if path.is_dir() else found + _parsed(path)
    for component in file.get("components", []):
        found = _accumulated(folder / component, found)
    for entry in file.get("patches", []):
        patch = _parsed(folder / entry["path"])[0]
        target = tuple(entry["target"][key] for key in ("kind", "name")) if "target" in entry else identity(patch)
        assert [identity(o) for o in found].count(target) == 1, f"{folder}: {target}"
        found = [patched(o, patch) if identity(o) == target else o for o in found]
    return found


@lru_cache
def _text_parsed(text: str) -> list[Any]:
    return list(yaml.load_all(text, yaml.CSafeLoader))  # ten times as fast


def _parsed(path: Path) -> list[Any]:
    """The documents of a YAML file."""
    return copy.deepcopy(_text_parsed(path.read_text(encoding="utf-8")))


def _operated(found: Object, operations: list[Object]) -> Object:
    result = copy.deepcopy(found)
    for operation in operations:
        *path, last = operation["path"].strip("/").split("/")
        parent: Any = result
        for name in path:
            parent = parent[int(name) if isinstance(parent, list) else name]
        match operation["op"], last:
            case "add", "-":
                parent.append(operation["value"])
            case "add", _:
                parent[last] = operation["value"]
            case "remove", _:
                del parent[last]
            case _:
                raise NotImplementedError(operation)
    return result


def _merged(found: Object, patch: Object) -> Object:
    assert not any(isinstance(value, list) for value in patch.values()), "use a JSON patch for lists"
    own = {n: _merged(found.get(n, {}), value) if isinstance(value, dict) else value for n, value in patch.items()}
    return {**found, **own}
