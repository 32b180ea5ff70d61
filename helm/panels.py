"""The kinds of panels of the dashboard, with the queries in them."""

import re
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${source}"}
QUANTILES = ((0.5, "median"), (0.99, "99 %"))
Panel = dict[str, Any]

SELECTED = 'cluster=~"$cluster", namespace=~"$namespace"'  # by the user; empty where targets have no such labels
_OURS = re.compile(r"\b((?:streampca[_:]|process_)[a-z0-9_:]+)(\{?)")


def of_topic(expr: str) -> str:
    """The expression with every metric restricted to the topic that is selected in the dashboard."""
    return _OURS.sub(lambda found: f'{found[1]}{{{SELECTED}, topic="$topic"' + (", " if found[2] else "}"), expr)


def query(expr: str, legend: str = "", **more: Any) -> dict[str, Any]:
    """A query over the dashboard's time range."""
    return {"expr": of_topic(expr), "legendFormat": legend or "__auto", "datasource": SOURCE, "range": True, **more}


def instant(expr: str, legend: str = "") -> dict[str, Any]:
    """A query for the current value."""
    return query(expr, legend, instant=True, range=False)


def panel(kind: str, title: str, text: str, queries: list[Panel], unit: str, width: int, **more: Any) -> Panel:
    """A panel, not yet positioned."""
    targets = [{**target, "refId": chr(ord("A") + i)} for i, target in enumerate(queries)]
    defaults = {"unit": unit, **more.pop("defaults", {})}
    return {
        "type": kind, "title": title, "description": text, "datasource": SOURCE, "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []}, "gridPos": {"h": 8, "w": width}, **more,
    }  # fmt: skip


def lines(title: str, text: str, *queries: Panel, unit: str = "short", width: int = 8, **defaults: Any) -> Panel:
    """A time series panel."""
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    custom = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False}
    return panel(
        "timeseries", title, text, list(queries), unit, width, options=options, defaults={"custom": custom, **defaults}
    )


def stat(title: str, text: str, expr: str, unit: str = "short", red_from: float | None = None) -> Panel:
    """A panel with one number, red from `red_from`."""
    steps: list[Panel] = [{"color": "green", "value": None}]
    if red_from is not None:
        steps.append({"color": "red", "value": red_from})
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value", "graphMode": "area", "textMode": "auto", "justifyMode": "auto", "orientation": "auto",
    }  # fmt: skip
    stat_panel = panel(
        "stat", title, text, [query(expr)], unit, 3, options=options,
        defaults={"thresholds": {"mode": "absolute", "steps": steps}},
    )  # fmt: skip
    stat_panel["gridPos"]["h"] = 4
    return stat_panel


def bars(title: str, text: str, series: Panel, unit: str) -> Panel:
    """A panel with a bar for the current value of each series."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "vertical", "displayMode": "basic", "showUnfilled": False, "valueMode": "color",
    }  # fmt: skip
    return panel("bargauge", title, text, [series], unit, 8, options=options, defaults={"min": 0})


def heatmap(title: str, text: str, buckets: str) -> Panel:
    """A histogram over time, as a heat map."""
    options = {
        "calculate": False, "cellGap": 0, "rowsFrame": {"layout": "auto"}, "filterValues": {"le": 1e-9},
        "color": {"mode": "scheme", "scheme": "Oranges", "fill": "dark-orange", "exponent": 0.5, "steps": 64},
        "yAxis": {"axisPlacement": "left", "unit": "percentunit"}, "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False}, "legend": {"show": True},
    }  # fmt: skip
    return panel("heatmap", title, text, [query(buckets, "{{le}}", format="heatmap")], "short", 8, options=options)


def quantiles(metric: str, by: str = "", legend: str = "") -> list[Panel]:
    """Median and 99th percentile of a histogram."""
    rate = f"sum by (le{', ' + by if by else ''}) (rate({metric}_bucket[$__rate_interval]))"
    return [query(f"histogram_quantile({q}, {rate})", f"{legend} {name}".strip()) for q, name in QUANTILES]
