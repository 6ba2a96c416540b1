"""What weir's dashboards share, built with Grafana's Foundation SDK; their panels are in ``boards``.

They are dashboards of schema version 1, which every Grafana since version 10 reads, although the SDK prefers version 2.
"""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as models

__all__ = ["REQUESTS", "board", "chart", "increase", "quantile", "quantiles", "rate", "scoped", "single"]

REQUESTS: Final = 'job="weir-serving",grpc_method=~"Retrieve|Embed"'
"""Labels of the requests that clients wait for."""
_SOURCE: Final = looks.DataSourceRef("prometheus", "${datasource}")
_K: Final = [models.VariableOption(value == "20", value, value) for value in ("20", "10", "100")]
_ABOVE: Final = ""
"""Above the panels: by default the SDK moves links and annotations into a menu (its issue 1272)."""
_P = TypeVar("_P", stat.Panel, timeseries.Panel)


def scoped(query: str) -> str:
    """Restrict every selector of a query to the chosen namespaces; a metric without labels is written ``name{}``."""
    return query.replace("{", '{namespace=~"$namespace",').replace(",}", "}")


def rate(selector: str, by: str = "", function: str = "rate") -> str:
    """Return the query for events per second, summed over all labels but those in `by`."""
    return f"sum {f'by ({by}) ' if by else ''}({function}({selector}[$__rate_interval]))"


def increase(selector: str, by: str = "") -> str:
    """Return the query for the number of events in a step of the chart, summed like `rate`."""
    return rate(selector, by, "increase")


def quantile(level: float, histogram: str, labels: str = "", by: str = "le") -> str:
    """Return the query for a quantile of a histogram."""
    return f"histogram_quantile({level}, {rate(f'{histogram}_bucket{{{labels}}}', by)})"


def quantiles(histogram: str, labels: str = "") -> dict[str, str]:
    """Return three quantiles of a histogram by legend."""
    return {f"{100 * level:.0f} %": quantile(level, histogram, labels) for level in (0.5, 0.95, 0.99)}


def single(
    title: str, query: str, about: str = "", *, unit: str = "short", limits: Mapping[str, float | None] | None = None
) -> stat.Panel:
    """Return a panel of one number; `limits` are colours and the values they start at."""
    steps = [models.Threshold(value, colour) for colour, value in (limits or {"green": None}).items()]
    panel = (
        stat.Panel()
        .span(4)
        .height(4)
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(looks.BigValueGraphMode.NONE)
        .text_mode(looks.BigValueTextMode.VALUE)
    )
    return _asking(panel, title, about, unit, [_query(query).legend_format("now").instant()])


def chart(
    title: str,
    queries: Mapping[str, str],
    about: str = "",
    *,
    unit: str = "short",
    width: int = 8,
    low: float | None = 0,
    top: float | None = None,
) -> timeseries.Panel:
    """Return a panel of lines over time: queries by legend, from `low` to `top`; None: as far as the values go."""
    legend = common.VizLegendOptions().display_mode(looks.LegendDisplayMode.TABLE).calcs(["lastNotNull"])
    panel = (
        timeseries.Panel()
        .span(width)
        .height(8)
        .fill_opacity(5)
        .show_points(looks.VisibilityMode.NEVER)
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC))
        .legend(legend.placement(looks.LegendPlacement.BOTTOM).show_legend(show_legend=True))
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING))
    )
    if low is not None:
        panel.min(low)
    if top is not None:
        panel.max(top)
    targets = [_query(query).legend_format(name).range() for name, query in queries.items()]
    return _asking(panel, title, about, unit, targets)


def _query(query: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().datasource(_SOURCE).expr(scoped(query))


def _asking(panel: _P, title: str, about: str, unit: str, targets: Sequence[prometheus.Dataquery]) -> _P:
    for letter, target in zip(ascii_uppercase, targets, strict=False):
        panel.with_target(target.ref_id(letter))
    return panel.title(title).description(about).unit(unit).datasource(_SOURCE)


def board(
    uid: str, title: str, about: str, rows: Mapping[str, Sequence[stat.Panel | timeseries.Panel]]
) -> models.Dashboard:
    """Return a dashboard of rows of panels, which fill 24 columns from left to right."""
    page = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(about)
        .tags(["weir"])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .annotation(_alerts())
        .link(_link())
        .variables(_variables())
    )
    for name, panels in rows.items():
        page.with_row(dashboard.Row(name))
        for panel in panels:
            page.with_panel(panel)
    made = page.build()
    for number, each in enumerate(made.panels or [], 1):
        each.id_val = number
    return made


def _link() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("weir").type(models.DashboardLinkType.DASHBOARDS).tags(["weir"])
    return link.keep_time(keep_time=True).placement(_ABOVE)


def _alerts() -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(_SOURCE)
        .icon_color("red")
        .expr('ALERTS{alertname=~"Weir.+",alertstate="firing"}')
        .title_format("{{alertname}}")
        .placement(_ABOVE)
    )


def _variables() -> list[Builder[models.VariableModel]]:
    namespaces: dict[str, object] = {"query": 'label_values(up{job=~"weir-.+"}, namespace)', "refId": "namespace"}
    return [
        dashboard.DatasourceVariable("datasource").type("prometheus").label("Data source"),
        dashboard.QueryVariable("namespace")
        .datasource(_SOURCE)
        .query(namespaces)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .include_all(include_all=True)
        .all_value(".*")
        .multi(multi=True)
        .current(models.VariableOption(text="All", value="$__all")),
        dashboard.CustomVariable("k").values("20,10,100").options(_K).current(_K[0]),
    ]
