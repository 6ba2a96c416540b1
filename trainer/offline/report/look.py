"""Style of the plots: themes, a stroke per row, the canvas, and labels beside lines."""

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

__all__ = ["DARK", "DPI", "LIGHT", "WIDTH", "Stroke", "Theme", "label_ends", "look", "panel", "png", "sheet", "stroke"]

WIDTH: Final = 7.6
"""Width in inches: text of 9 points stays legible where the page shows it 40 rem wide."""
DPI: Final = 200
_MARGIN: Final = {"left": 0.58, "right": 1.95, "bottom": 0.5, "top": 0.78}
"""Inches around the axes; row names are on the right."""
_LINE: Final = 0.17
"""Height of one line of a label, in inches."""
# Okabe and Ito (2008), safe for all forms of colour blindness; without black and yellow, which one theme would hide.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_DASHES: Final = ("", "5 2", "1 1.5")


@dataclass(frozen=True)
class Theme:
    """Colours of a plot, except the colours of the compared rows (`Stroke`)."""

    ground: str
    ink: str
    muted: str
    grid: str


LIGHT: Final = Theme(ground="#ffffff", ink="#1c2126", muted="#5f6872", grid="#e1e5e9")
DARK: Final = Theme(ground="#171b20", ink="#e4e8ec", muted="#9ba5af", grid="#2e353d")


@dataclass(frozen=True)
class Stroke:
    """Colour, dashes and marker of a row, the same in all plots."""

    colour: str
    dashes: str
    """Lengths of dash and gap in line widths, as in SVG; empty for a solid line."""
    marker: str

    def style(self, theme: Theme) -> dict[str, Any]:
        """Return the arguments of `Axes.plot`."""
        pattern = tuple(map(float, self.dashes.split()))
        face = theme.ground if pattern else self.colour
        line = {"color": self.colour, "linewidth": 1.7, "linestyle": (0, pattern) if pattern else "-"}
        return line | {"marker": self.marker, "markersize": 4.5, "markerfacecolor": face, "markeredgewidth": 1.2}


def stroke(number: int) -> Stroke:
    """Return the stroke of the row with this number: six colours, solid, then dashed, then dotted, then repeated."""
    again, colour = divmod(number, len(_COLOURS))
    return Stroke(_COLOURS[colour], _DASHES[again % len(_DASHES)], _MARKERS[colour])


@contextmanager
def look(theme: Theme) -> Iterator[None]:
    """Apply a theme to plots drawn inside the context."""
    settings: dict[Any, Any] = dict.fromkeys(["axes.labelcolor", "xtick.color", "ytick.color"], theme.muted)
    settings |= dict.fromkeys(["figure.facecolor", "savefig.facecolor", "axes.facecolor"], theme.ground)
    settings |= dict.fromkeys(["axes.spines.top", "axes.spines.right", "axes.spines.left", "ytick.left"], False)
    settings |= {"axes.edgecolor": theme.grid, "grid.color": theme.grid, "axes.grid": True, "axes.grid.axis": "y"}
    # Row names may contain a dollar sign, which is not mathematics.
    settings |= {"font.size": 9, "text.color": theme.ink, "text.parse_math": False, "axes.axisbelow": True}
    with mpl.rc_context(settings):
        yield


def sheet(height: float, title: str, subtitle: str, theme: Theme) -> Canvas:
    """Return a canvas `height` inches high with title and subtitle."""
    canvas = Canvas(figsize=(WIDTH, height), dpi=DPI)
    left = 0.12 / WIDTH
    canvas.text(left, 1 - 0.1 / height, title, va="top", fontsize=11.5, fontweight="bold")
    said = textwrap.shorten(subtitle, 125, placeholder=" …")
    canvas.text(left, 1 - 0.36 / height, said, va="top", fontsize=8, color=theme.muted)
    return canvas


def panel(canvas: Canvas) -> Axes:
    """Add axes that fill the canvas within its margins."""
    height = canvas.get_figheight()
    wide, high = WIDTH - _MARGIN["left"] - _MARGIN["right"], height - _MARGIN["top"] - _MARGIN["bottom"]
    return canvas.add_axes((_MARGIN["left"] / WIDTH, _MARGIN["bottom"] / height, wide / WIDTH, high / height))


def png(canvas: Canvas) -> bytes:
    """Return the canvas as a PNG; deterministic."""
    file = io.BytesIO()
    canvas.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def label_ends(axes: Axes, names: Sequence[str], ends: Sequence[tuple[float, float]], looks: Sequence[Stroke]) -> None:
    """Write each line's name to the right of the axes, as close to its last point as other names allow."""
    texts = [textwrap.fill(name, 23, max_lines=2, placeholder="…") for name in names]
    heights = [_LINE * (text.count("\n") + 1) for text in texts]
    inches = axes.bbox.height / DPI
    to_fraction = axes.transData + axes.transAxes.inverted()
    wanted = [float(to_fraction.transform(end)[1]) for end in ends]
    order = sorted(range(len(ends)), key=wanted.__getitem__)
    sizes = [heights[index] / inches for index in order]
    for index, place in zip(order, spread([wanted[index] for index in order], sizes), strict=True):
        leader = {"arrowstyle": "-", "color": looks[index].colour, "linewidth": 0.8, "shrinkA": 1, "shrinkB": 3}
        leader["relpos"] = (0, 0.5)
        axes.annotate(
            texts[index],
            ends[index],
            (1.06, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            linespacing=1.0,
            arrowprops=leader,
        )


def spread(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Return ascending centres moved apart, with least squared movement, until objects of these sizes fit.

    Isotonic regression by pooling adjacent violators, after each object's position in a gapless stack is subtracted.
    Centres stay between 0 and 1 if all objects fit.
    """
    gaps = [(one + other) / 2 for one, other in pairwise(sizes)]
    stack = np.cumsum([0.0, *gaps])[: len(wanted)]
    pools: list[list[float]] = []
    for place in np.asarray(wanted) - stack:
        pools.append([float(place)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    shifts = np.array([np.mean(pool) for pool in pools for _ in pool])
    return [float(place) for place in stack + np.clip(shifts, 0, max(0, 1 - stack[-1]))]
