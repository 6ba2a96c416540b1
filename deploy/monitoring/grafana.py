"""Grafana dashboards in a few words: ``boards/*.yaml`` holds rows of panels of queries, Grafana imports JSON."""

import itertools
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Board", "Panel", "Row", "asked", "scoped"]

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24
_HEIGHTS: Final = {"stat": 4, "timeseries": 8}
_LINES: Final = {
    "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull"]},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
_STAT: Final = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "colorMode": "value",
    "graphMode": "none",
    "textMode": "value",
}
_DATASOURCE: Final = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
_NAMESPACE: Final = {
    "name": "namespace",
    "type": "query",
    "datasource": _SOURCE,
    "query": {"query": 'label_values(up{job=~"weir-.+"}, namespace)', "refId": "namespace"},
    "refresh": 2,
    "includeAll": True,
    "allValue": ".*",
    "multi": True,
    "current": {"text": "All", "value": "$__all"},
}
_LINK: Final = {"type": "dashboards", "tags": ["weir"], "title": "weir", "asDropdown": False, "keepTime": True}
_ALERTS: Final = {
    "name": "Alerts",
    "datasource": _SOURCE,
    "enable": True,
    "iconColor": "red",
    "expr": 'ALERTS{alertname=~"Weir.+",alertstate="firing"}',
    "titleFormat": "{{alertname}}",
}


def scoped(query: str) -> str:
    """Restrict every selector of a query to the chosen namespaces; a metric without labels is written ``name{}``."""
    return query.replace("{", '{namespace=~"$namespace",').replace(",}", "}")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Panel(_Model):
    """A question."""

    title: str
    queries: dict[str, str] = Field(min_length=1, max_length=8, description="legend -> PromQL")
    about: str = Field(default="", description="what a reader should know")
    kind: Literal["timeseries", "stat"] = "timeseries"
    unit: str = Field(default="short", description="as Grafana names it")
    width: int = Field(default=8, ge=1, le=_WIDTH)
    top: float | None = Field(default=None, description="highest value of the scale")
    limits: dict[str, float | None] = Field(default={"green": None}, description="colour -> value it begins at")

    def to_json(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Return the panel at a place of the grid."""
        letters = "ABCDEFGH"
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": _HEIGHTS[self.kind]},
            "targets": [
                self._target(*found, letter) for found, letter in zip(self.queries.items(), letters, strict=False)
            ],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": _STAT if self.kind == "stat" else _LINES,
        }

    def _target(self, legend: str, query: str, letter: str) -> dict[str, Any]:
        single = self.kind == "stat"
        how = {"instant": single, "range": not single}
        return {"refId": letter, "datasource": _SOURCE, "expr": scoped(query), "legendFormat": legend, **how}

    def _defaults(self) -> dict[str, Any]:
        steps = [{"value": value, "color": colour} for colour, value in self.limits.items()]
        found: dict[str, Any] = {"unit": self.unit, "thresholds": {"mode": "absolute", "steps": steps}}
        if self.kind == "timeseries":
            drawn = {"fillOpacity": 5, "showPoints": "never"}
            found |= {"min": 0, "color": {"mode": "palette-classic"}, "custom": drawn}
        return found if self.top is None else found | {"max": self.top}


class Row(_Model):
    """A stage or a topic; its panels, all of one height, flow from left to right."""

    title: str
    panels: list[Panel] = Field(min_length=1)


class Board(_Model):
    """A page; `choices` are its variables with their values, of which the first is chosen."""

    uid: str
    title: str
    about: str
    choices: dict[str, list[str]] = {}
    rows: list[Row] = Field(min_length=1)

    def to_json(self) -> dict[str, Any]:
        """Return what Grafana imports."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.about,
            "tags": ["weir"],
            "schemaVersion": 39,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": [_ALERTS]},
            "links": [_LINK],
            "templating": {"list": [_DATASOURCE, _NAMESPACE, *(_choice(*found) for found in self.choices.items())]},
            "panels": self._panels(),
        }

    def _panels(self) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        numbers, y = itertools.count(1), 0
        for row in self.rows:
            place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
            head = {"type": "row", "title": row.title, "gridPos": place, "collapsed": False, "panels": []}
            made.append({"id": next(numbers), **head})
            x, y = 0, y + 1
            height = _HEIGHTS[row.panels[0].kind]
            for panel in row.panels:
                if x + panel.width > _WIDTH:
                    x, y = 0, y + height
                made.append(panel.to_json(next(numbers), x, y))
                x += panel.width
            y += height
        return made


def _choice(name: str, values: list[str]) -> dict[str, Any]:
    options = [{"text": value, "value": value, "selected": value == values[0]} for value in values]
    return {"name": name, "type": "custom", "query": ",".join(values), "options": options, "current": options[0]}


def asked(dashboard: dict[str, Any], interval: str = "1m") -> dict[tuple[str, str], str]:
    """Return a dashboard's queries as Grafana would send them, by title of the panel and legend."""
    chosen = {
        found["name"]: found["current"]["value"] for found in dashboard["templating"]["list"] if "options" in found
    }
    values = {"$__rate_interval": interval, "$namespace": ".*", **{f"${name}": value for name, value in chosen.items()}}

    def filled(query: str) -> str:
        for name, value in values.items():
            query = query.replace(name, value)
        return query

    return {
        (f"{panel['id']} {panel['title']}", target["legendFormat"]): filled(target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
