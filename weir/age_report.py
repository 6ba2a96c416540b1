"""The report on what age costs: a page with a picture, which needs matplotlib and Jinja (extras)."""

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from weir.age import AgeFacts, AgePoint
from weir.contracts import Store
from weir.text import span
from weir.trainer.offline.report import look
from weir.trainer.offline.report.page import Picture, environment

__all__ = ["draw_ages", "write_report"]

_NAMES: Final = {"bundle": "older bundle", "history": "older history", "both": "both older"}


def draw_ages(facts: AgeFacts, theme: look.Theme = look.LIGHT) -> bytes:
    """Return a PNG picture of the difference in recall by age, with 95 % intervals."""
    title = f"What age costs: recall@{facts.k}, against the freshest on the same events"
    said = f"windows of {span(facts.window_seconds or 0)}; bars: 95 % intervals over users"
    with look.look(theme):
        canvas = look.sheet(4.2, title, said, theme)
        _draw(look.panel(canvas), facts, theme)
        return look.png(canvas)


def _draw(axes: Axes, facts: AgeFacts, theme: look.Theme) -> None:
    axes.set_xlabel("age, windows")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:+.3f}"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.axhline(0, color=theme.muted, linewidth=0.8)
    names, ends, strokes = [], [], []
    for number, (aged, name) in enumerate(_NAMES.items()):
        points = [point for point in facts.points if point.aged == aged]
        if points:
            _line(axes, points, look.stroke(number), theme, offset=0.06 * (number - 1))
            names.append(name)
            ends.append((float(points[-1].windows), points[-1].difference))
            strokes.append(look.stroke(number))
    axes.autoscale_view()  # must be before the labels, which depend on the limits
    look.label_ends(axes, names, ends, strokes)


def _line(axes: Axes, points: list[AgePoint], stroke: look.Stroke, theme: look.Theme, offset: float) -> None:
    """Draw the line of some points with interval bars, shifted by `offset` so that bars of several lines stay apart."""
    at, values = [point.windows + offset for point in points], [point.difference for point in points]
    axes.plot(at, values, **stroke.style(theme))
    axes.vlines(at, [point.low for point in points], [point.high for point in points], color=stroke.colour, alpha=0.6)


def write_report(folder: Path, facts: AgeFacts) -> Path:
    """Write ``age.html`` (with embedded picture), ``age.png`` and ``age.json`` to a folder; return the page's path.

    Without figures of kept bundles there is no picture.
    """
    templates = environment(Path(__file__).parent)
    templates.filters["span"] = span
    store, picture = Store(str(folder)), None
    if facts.points:
        light, dark = (draw_ages(facts, theme) for theme in (look.LIGHT, look.DARK))
        picture = Picture(light, dark, f"Difference in recall@{facts.k} by age of bundle and history")
        store.write("age.png", light)
    page = templates.get_template("age.html").render(facts=facts, it=picture, names=_NAMES)
    store.write("age.json", facts.model_dump_json(indent=2).encode())
    store.write("age.html", page.encode())
    return folder / "age.html"
