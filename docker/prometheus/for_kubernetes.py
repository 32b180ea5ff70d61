"""Generates the Prometheus operator's rules from rules.yml: `python docker/prometheus/for_kubernetes.py`."""

from pathlib import Path

RULES = Path(__file__).with_name("rules.yml")
OUTPUT = Path(__file__).parents[1] / "kubernetes" / "rules.yaml"
_HEAD = """\
# Generated from docker/prometheus/rules.yml by docker/prometheus/for_kubernetes.py: edit the rules there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: streampca
  labels: {app.kubernetes.io/name: streampca}
spec:
"""


def text() -> str:
    """The file's content: the groups, with their comments, under `spec`."""
    groups = RULES.read_text().partition("\ngroups:\n")[2]
    return _HEAD + "".join(f"  {line}" if line.strip() else line for line in ["groups:\n", *groups.splitlines(True)])


if __name__ == "__main__":
    OUTPUT.write_text(text())
