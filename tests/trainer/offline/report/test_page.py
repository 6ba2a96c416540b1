import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.trainer.offline.report.comparisons import METRICS, comparison, read, run, write
from weir.trainer.offline.report.page import Picture, Scale, render, settings
from weir.trainer.offline.report.table import MetricSummary
from weir.trainer.offline.results import save_result

HOSTILE = ["<script>alert(1)</script>", 'Quote " and & <b>bold</b>', "{{ 7 * 7 }}"]
PICTURES = {name: Picture(b"light", b"dark", name) for name in ("curves", "popularity")}
VOID = {"meta", "link", "img", "source", "line", "br", "hr", "input"}


class Page(HTMLParser):
    """Tags with their attributes, the text, the body rows of each section's first table; refuses tags left open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.rows: dict[str, list[list[str]]] = {}
        self.section = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        elif tag == "tr" and "tbody" in self.open:
            self.rows.setdefault(self.section, []).append([])
        elif tag in {"td", "th"} and "tbody" in self.open:
            self.rows[self.section][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text.append(data)
        if "tbody" in self.open and {"td", "th"} & set(self.open) and "title" not in self.open:
            self.rows[self.section][-1][-1] += data.strip()

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture
def page(tmp_path: Path) -> Page:
    table = write(tmp_path, HOSTILE)
    return Page(render(comparison(HOSTILE, [0, 1, 2]), table, PICTURES))


def test_the_page_asks_the_network_for_nothing(page: Page) -> None:
    loaded = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in {"src", "srcset", "href", "data", "action", "poster", "xlink:href"}
    ]
    assert len(loaded) == 5, "two pictures in two themes, and no icon"
    assert all(value is not None and value.startswith("data:") for value in loaded)
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:")


def test_style_and_script_name_no_address(tmp_path: Path) -> None:
    html = render(comparison(["BPR"], [0, 1, 2]), write(tmp_path, ["BPR"]), PICTURES)
    assert re.findall(r"https?:|@import|url\(|fetch\(|import\(", html) == []


def test_every_row_and_seed_is_there_with_its_figure(page: Page) -> None:
    for section in ("results", "strata", "configuration"):
        assert [cells[0] for cells in page.rows[section]] == HOSTILE
    assert [cells[0] for cells in page.rows["popularity"]] == ["Test cases", *HOSTILE]
    for row, cells in zip(HOSTILE, page.rows["results"], strict=True):
        assert cells[1] == "3"
        for seed in (0, 1, 2):
            assert f"seed {seed}: {run(row, seed).metrics['recall@20']:.4f}" in page.words
        for metric, column in zip(METRICS, (4, 2, 5), strict=True):
            mean = sum(run(row, seed).metrics[metric] for seed in (0, 1, 2)) / 3
            assert cells[column].startswith(f"{mean:.4f} ± ")


def test_names_are_text_whatever_they_hold(page: Page) -> None:
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "b" not in [tag for tag, _ in page.tags]
    assert "49" not in page.rows["results"][2][0]


def test_the_page_says_what_was_compared(page: Page) -> None:
    title = page.words.split(" Comparison of losses")[0]
    assert title == "Losses: ml-1m, leave-one-out split, 900 steps (921,600 examples) per run"
    for told in ("6,040", "3,416", "2.13.0", "weir bench losses --data ml-1m", "Head, 50 % of cases"):
        assert told in page.words
    assert "Unfinished" not in page.words
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == ["compared", "results", "strata", "curves", "popularity", "configuration", "origin"]


def test_a_half_finished_comparison_says_so_and_names_what_is_missing(tmp_path: Path) -> None:
    rows = ["Done", "Started", "Not yet"]
    table = write(tmp_path, rows, finished=lambda row, seed: seed < (3, 1, 0)[row])
    page = Page(render(comparison(rows, [0, 1, 2]), table, PICTURES))
    assert "Unfinished: 4 of 9 runs done." in page.words
    assert "Started: seeds 1, 2 missing" in page.words
    assert "Not yet: seeds 0, 1, 2 missing" in page.words
    assert "Done: seed" not in page.words
    assert "Best so far by Recall@20" in page.words
    assert [cells[1] for cells in page.rows["results"]] == ["3", "1 of 3", "0 of 3"]


def test_a_comparison_without_any_run_is_a_page_too(tmp_path: Path) -> None:
    table = write(tmp_path, ["BPR"], finished=lambda row, seed: False)
    page = Page(render(comparison(["BPR"], [0, 1, 2]), table, PICTURES))
    assert "Unfinished: 0 of 3 runs done." in page.words
    assert "Best" not in page.words.split("What was compared")[0]


def test_runs_without_strata_or_intervals_make_a_page(tmp_path: Path) -> None:
    write(tmp_path, ["BPR"], [0])
    save_result(tmp_path, run("BPR", 0, strata={}, deciles=[], intervals={}, curve=[]))
    page = Page(render(comparison(["BPR"], [0]), read(tmp_path), PICTURES))
    assert page.rows["results"][0][3] == "–"
    assert "popularity" not in page.rows


@pytest.mark.parametrize(
    ("low", "told"),
    [
        (0.2, "interval overlaps those of BPR; CCL; separate intervals"),
        (0.26, "interval overlaps that of CCL; separate intervals"),
        (0.28, "No other row's interval overlaps it."),
    ],
)
def test_the_finding_names_the_rows_that_the_intervals_do_not_tell_apart(tmp_path: Path, low: float, told: str) -> None:
    rows = ["BPR", "CCL", "SSM"]
    write(tmp_path, rows, [0])
    for row, mean, interval in [("BPR", 0.2, (0.1, 0.25)), ("CCL", 0.21, (0.2, 0.27)), ("SSM", 0.3, (low, 0.4))]:
        save_result(tmp_path, run(row, 0, metrics={"recall@20": mean}, intervals={"recall@20": interval}))
    words = Page(render(comparison(rows, [0]), read(tmp_path), PICTURES)).words
    assert f"Best by Recall@20: SSM , 0.3000 (95 % interval {low:.4f} to 0.4000)." in words
    assert told in words


def test_settings_are_told_once_where_rows_agree() -> None:
    configuration = {
        "A": {"rate": 0.001, "tower": {"layers": 2, "heads": [1, 2]}, "cosine": True},
        "B": {"rate": 0.01, "tower": {"layers": 2, "heads": [1, 2]}, "negatives": 1024},
    }
    shared, own = settings(comparison(["A", "B"], [0], configuration=configuration))
    assert shared == {"tower.layers": "2", "tower.heads": "1, 2"}
    assert own == {
        "A": {"rate": "0.001", "cosine": "yes", "negatives": ""},
        "B": {"rate": "0.01", "cosine": "", "negatives": "1,024"},
    }


def test_a_scale_holds_all_values_and_intervals() -> None:
    scale = Scale.of([MetricSummary((0.2, 0.3), 0.1, 0.4), MetricSummary(()), MetricSummary((0.5,))])
    assert (scale(0.1), scale(0.5)) == (6, 144)
    assert scale(0.3) == pytest.approx(75)
    assert Scale.of([MetricSummary((0.2,))])(0.2) == 75
