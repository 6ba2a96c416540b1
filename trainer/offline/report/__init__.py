"""Report of a comparison of losses: a table, two plots and a self-contained HTML page."""

from pathlib import Path

from weir.contracts import Store
from weir.trainer.offline.report.table import as_csv, as_markdown, metric_label, stratified_metric, subject, summarise
from weir.trainer.offline.results import load_comparison, load_results

__all__ = ["write_report"]


def write_report(folder: Path) -> Path:
    """Write the report of the comparison in `folder`, finished or not, beside its results.

    Writes ``table.md``, ``table.csv``, ``curves.png``, ``popularity.png`` and ``report.html``; the page embeds the
    plots, so it can be sent alone.

    Returns
    -------
    Path
        Path of ``report.html``.

    Raises
    ------
    FileNotFoundError
        If there is no ``comparison.json``.
    ResultsError
        If a result file cannot be used.
    ImportError
        If the plotting or template library is not installed.
    """
    try:
        from weir.trainer.offline.report import look, page, plots  # noqa: PLC0415  training needs neither library
    except ModuleNotFoundError as error:
        raise ImportError(
            f"a report needs {error.name}: install it with `pip install 'weir-retrieval[bench]'`"
        ) from error
    comparison = load_comparison(folder)
    table = summarise(comparison, load_results(folder, comparison))
    about, stratified = subject(comparison, table), stratified_metric(table)
    themes = (look.LIGHT, look.DARK)
    curves = [plots.draw_curves(table, about, theme) for theme in themes]
    popularity = [plots.draw_popularity(table, stratified, about, theme) for theme in themes]
    pictures = {
        "curves": page.Picture(curves[0], curves[1], f"{metric_label(table.headline)} on validation against steps"),
        "popularity": page.Picture(
            popularity[0], popularity[1], f"{metric_label(stratified)} on test by popularity decile"
        ),
    }
    files = {
        "table.md": as_markdown(comparison, table).encode(),
        "table.csv": as_csv(table).encode(),
        "curves.png": curves[0],
        "popularity.png": popularity[0],
        "report.html": page.render(comparison, table, pictures).encode(),
    }
    store = Store(str(folder))
    for name, data in files.items():
        store.write(name, data)
    return folder / "report.html"
