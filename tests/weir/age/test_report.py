from pathlib import Path

from weir.age.facts import AgeFacts, AgePoint, Longer, ServedAge
from weir.age.report import write_report

POINT = AgePoint(aged="bundle", windows=2, cases=1234, recall=0.25, freshest=0.5, low=-0.3, high=-0.2)
FACTS = AgeFacts(
    k=20,
    window_seconds=43_200,
    windows=3,
    points=(POINT, POINT.model_copy(update={"aged": "both", "windows": 3})),
    longer=(Longer(times=3, cases=7, difference=-0.125, low=-0.2, high=-0.1),),
    served=(ServedAge(of="history", up_to=None, cases=9, recall=0.75, low=0.5, high=0.9),),
)


def test_the_page_has_every_figure_and_needs_nothing_else(tmp_path: Path) -> None:
    text = write_report(tmp_path, FACTS).read_text()
    for figure in ("1,234", "-0.2500", "-0.3000 to -0.2000", "1 d", "1.5 d", "-0.1250", "0.7500", "older"):
        assert figure in text
    assert "http" not in text.replace("http-equiv", "")
    assert (tmp_path / "age.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert AgeFacts.model_validate_json((tmp_path / "age.json").read_text()) == FACTS


def test_without_kept_bundles_there_is_what_was_served(tmp_path: Path) -> None:
    text = write_report(tmp_path, FACTS.model_copy(update={"points": (), "longer": ()})).read_text()
    assert "As served" in text
    assert "<img" not in text
