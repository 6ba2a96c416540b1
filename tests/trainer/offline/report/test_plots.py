import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.trainer.offline.report.comparisons import read, run, write
from weir.trainer.offline.report.look import DARK, DPI, LIGHT, WIDTH, Theme, stroke
from weir.trainer.offline.report.plots import by_decile, curve, draw_curves, draw_popularity
from weir.trainer.offline.results import save_result

TEN = [f"Row {number} of ten, with a long name" for number in range(10)]


def pixels(data: bytes) -> npt.NDArray[Any]:
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def share_of(colour: str, picture: npt.NDArray[Any]) -> float:
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return float((picture == wanted).all(axis=-1).mean())


def test_a_curve_is_the_mean_and_deviation_of_the_seeds(tmp_path: Path) -> None:
    row = write(tmp_path, ["BPR"]).rows[0]
    line = curve(row, "recall@20")
    values = np.array([[point.metrics["recall@20"] for point in one.curve] for one in row.runs])
    np.testing.assert_array_equal(line.at, np.arange(100, 1000, 100))
    np.testing.assert_allclose(line.mean, values.mean(axis=0))
    np.testing.assert_allclose(line.deviation, values.std(axis=0, ddof=1))


def test_seeds_tested_at_other_steps_are_read_where_all_have_been(tmp_path: Path) -> None:
    write(tmp_path, ["BPR"], [0, 1])
    for seed, steps in enumerate([(0, 100, 200), (50, 150, 250)]):
        points = [{"step": step, "seconds": 1, "loss": 1, "metrics": {"recall@20": step / 1000}} for step in steps]
        save_result(tmp_path, run("BPR", seed, curve=points))
    line = curve(read(tmp_path).rows[0], "recall@20")
    np.testing.assert_array_equal(line.at, [50, 100, 150, 200])
    np.testing.assert_allclose(line.mean, line.at / 1000)
    np.testing.assert_allclose(line.deviation, 0, atol=1e-12)


def test_deciles_are_the_mean_of_the_seeds_and_one_seed_has_no_band(tmp_path: Path) -> None:
    row = write(tmp_path, ["BPR"], [0]).rows[0]
    line = by_decile(row, "recall@20")
    np.testing.assert_array_equal(line.at, np.arange(1, 11))
    np.testing.assert_allclose(line.mean, [decile.metrics["recall@20"] for decile in row.runs[0].deciles])
    assert np.isnan(line.deviation).all()


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_pictures_have_their_size_and_every_row_in_its_colour(tmp_path: Path, theme: Theme) -> None:
    table = write(tmp_path, TEN[:4])
    for data in (draw_curves(table, "ml-1m", theme), draw_popularity(table, "recall@20", "ml-1m", theme)):
        picture = pixels(data)
        assert picture.shape == (4 * DPI, round(WIDTH * DPI), 3)
        assert share_of(theme.ground, picture) > 0.6
        for number in range(4):
            assert share_of(stroke(number).colour, picture) > 1e-4, number
        assert share_of(stroke(4).colour, picture) == 0


def test_many_rows_make_taller_pictures(tmp_path: Path) -> None:
    table = write(tmp_path, TEN)
    assert pixels(draw_curves(table, "ml-1m")).shape[0] == round((1.5 + 0.36 * 10) * DPI)
    panels = pixels(draw_popularity(table, "recall@20", "ml-1m"))
    assert panels.shape == (round((1.2 + 1.55 * 4) * DPI), round(WIDTH * DPI), 3)
    for number in range(6):
        assert share_of(stroke(number).colour, panels) > 1e-4, number


def test_a_row_keeps_its_colour_when_those_before_it_have_not_run(tmp_path: Path) -> None:
    table = write(tmp_path, TEN[:3], finished=lambda row, seed: row == 2)
    for data in (draw_curves(table, "ml-1m"), draw_popularity(table, "recall@20", "ml-1m")):
        assert share_of(stroke(2).colour, pixels(data)) > 1e-4
        assert share_of(stroke(0).colour, pixels(data)) == 0


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    table = write(tmp_path, TEN[:2], [0])
    assert draw_curves(table, "ml-1m") == draw_curves(table, "ml-1m")


def test_nothing_to_draw_and_figures_that_are_not_numbers_still_make_a_picture(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty", ["BPR", "$5$"], finished=lambda row, seed: False)
    write(tmp_path / "nan", ["BPR", "$x_{1$"], [0])
    points = [{"step": 100, "seconds": 1, "loss": math.nan, "metrics": {"recall@20": math.nan}}]
    deciles = [{"recall@20": 0.5, "cases": 9}] * 9 + [{"recall@20": math.nan, "cases": 0}]
    save_result(tmp_path / "nan", run("BPR", 0, curve=points, deciles=deciles))
    write(tmp_path / "bare", ["BPR"], [0])
    save_result(tmp_path / "bare", run("BPR", 0, curve=[], deciles=[]))
    for table in (empty, read(tmp_path / "nan"), read(tmp_path / "bare")):
        for data in (draw_curves(table, "ml-1m"), draw_popularity(table, "recall@20", "ml-1m")):
            assert pixels(data).shape[0] == 4 * DPI
