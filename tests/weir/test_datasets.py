from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weir import datasets as movielens
from weir.check.report import check_log
from weir.datasets import LAYOUTS, MovieLensError, convert
from weir.readers import LogConfig
from weir.trainer.offline.data import read_interactions

RATINGS = [(1, 10, 4.0, 978300760), (1, 2, 3.0, 978300019), (7, 10, 5.0, 978300019), (22, 31, 1.0, 978300275)]
TITLES = {10: "GoldenEye (1995)", 2: "Star Wars: Episode IV, A New Hope (1977)", 31: "Cité des enfants perdus, La"}
NAMES = {10: "goldeneye-1995-10", 2: "star-wars-episode-iv-a-new-hope-1977-2", 31: "cite-des-enfants-perdus-la-31"}
FORMS = [layout.ratings for layout in LAYOUTS]

Rating = tuple[int, int, float, int]


def write_folder(folder: Path, form: str, ratings: list[Rating] = RATINGS, titles: dict[int, str] = TITLES) -> Path:
    """Write a folder as the archive of a release unpacks."""
    folder.mkdir(exist_ok=True)
    if form == "ratings.csv":
        lines = ["userId,movieId,rating,timestamp", *(",".join(map(str, row)) for row in ratings)]
        films = ["movieId,title,genres", *(f'{movie},"{title}",Drama|War' for movie, title in titles.items())]
        (folder / "ratings.csv").write_bytes(("\r\n".join(lines) + "\r\n").encode())
        (folder / "movies.csv").write_text("\n".join(films) + "\n", "utf-8")
    elif form == "ratings.dat":
        dat = [f"{user}::{movie}::{rating:g}::{time}" for user, movie, rating, time in ratings]
        (folder / "ratings.dat").write_text("".join(f"{line}\n" for line in dat))
        films = [f"{movie}::{title}::Drama" for movie, title in titles.items()]
        (folder / "movies.dat").write_text("\n".join(films) + "\n", "latin-1")
    else:
        tabs = ["\t".join(map(str, (user, movie, int(rating), time))) for user, movie, rating, time in ratings]
        (folder / "u.data").write_text("".join(f"{line}\n" for line in tabs))
        films = [f"{movie}|{title}|01-Jan-1995||http://us.imdb.com/|0|0|1" for movie, title in titles.items()]
        (folder / "u.item").write_text("\n".join(films) + "\n", "latin-1")
    return folder


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    rows = pq.read_table(path).to_pylist()
    return [(row["user_id"], row["item_id"], row["rating"], row["timestamp"].timestamp()) for row in rows]


def in_time(ratings: list[Rating], names: dict[int, str]) -> list[tuple[Any, ...]]:
    ordered = sorted(ratings, key=lambda row: row[3])
    return [(str(user), names.get(movie, str(movie)), rating, time) for user, movie, rating, time in ordered]


@pytest.mark.parametrize("form", FORMS)
def test_every_layout_becomes_the_same_log(tmp_path: Path, form: str) -> None:
    path, seen = tmp_path / "log.parquet", list[tuple[str, float]]()
    found = convert(write_folder(tmp_path / "ml", form), path, lambda doing, share: seen.append((doing, share)))
    assert rows_of(path) == in_time(RATINGS, NAMES)
    assert (found.events, found.users, found.items) == (4, 3, 3)
    assert (found.start_ms, found.end_ms) == (978300019000, 978300760000)
    assert seen == [("read", 1), ("written", 1)]


@pytest.mark.parametrize("form", FORMS)
def test_the_log_is_read_by_default_settings(tmp_path: Path, form: str) -> None:
    path = tmp_path / "log.parquet"
    convert(write_folder(tmp_path / "ml", form), path)
    report = check_log(LogConfig(log=str(path)))
    assert (report.valid_before, report.settings, report.users, report.items) == (4, [], 3, 3)
    read = read_interactions(str(path))
    assert read.item_ids[read.items].tolist() == [row[1] for row in in_time(RATINGS, NAMES)]
    assert read.timestamps is not None
    assert read.timestamps.tolist() == sorted(1000 * row[3] for row in RATINGS)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ratings=st.lists(
        st.tuples(
            *(st.integers(1, 2**31), st.integers(1, 300_000)),
            *(st.integers(1, 5).map(float), st.integers(789_652_004, 1_700_000_000)),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_without_titles_numbers_are_names(tmp_path: Path, form: str, ratings: list[Rating]) -> None:
    folder = write_folder(tmp_path / "ml", form, ratings)
    for layout in LAYOUTS:
        (folder / layout.movies).unlink(missing_ok=True)
    convert(folder, tmp_path / "log.parquet")
    assert rows_of(tmp_path / "log.parquet") == in_time(ratings, {})


@pytest.mark.parametrize("form", ["ratings.csv", "ratings.dat"])
def test_ratings_may_be_halves(tmp_path: Path, form: str) -> None:
    convert(write_folder(tmp_path / "ml", form, [(1, 2, 3.5, 978300019)]), tmp_path / "log.parquet")
    assert rows_of(tmp_path / "log.parquet")[0][2] == 3.5


def refusal(folder: Path) -> str:
    output = folder.parent / "log.parquet"
    with pytest.raises(MovieLensError) as raised:
        convert(folder, output)
    # What was there before stays as it was.
    assert not output.exists()
    return str(raised.value)


def test_a_folder_without_ratings_is_told_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    line = refusal(tmp_path / "empty")
    for part in ("has none of ratings.csv (ml-latest,", "ratings.dat (ml-1m, ml-10m)", "u.data (ml-100k)"):
        assert part in line
    assert "there is no such folder, with one of ratings.csv" in refusal(tmp_path / "missing")
    (tmp_path / "ml-1m.zip").write_bytes(b"PK")
    assert "is a file; name the folder that it unpacks to" in refusal(tmp_path / "ml-1m.zip")
    write_folder(tmp_path / "empty" / "ml-1m", "ratings.dat")
    assert refusal(tmp_path / "empty").endswith(f"; {tmp_path / 'empty' / 'ml-1m'} has one: name that folder")


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_or_empty_file_is_named(tmp_path: Path, form: str) -> None:
    folder = write_folder(tmp_path / "ml", form)
    with (folder / form).open("a") as file:
        file.write("no rating\n")
    assert f"{folder / form}: is damaged: CSV parse error" in refusal(folder)
    write_folder(folder, form, [])
    assert f"{folder / form}: has no rating" in refusal(folder)
    (folder / form).write_bytes(b"")
    assert f"{folder / form}: has no rating" in refusal(folder)


def test_a_log_of_many_row_groups_is_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movielens, "_ROW_GROUP", 3)
    monkeypatch.setattr(movielens, "_BLOCK_BYTES", 64)
    ratings = [(user, 10 * (user % 7), 3.0, 978300019 + 31 * user % 50) for user in range(1, 41)]
    path, shares = tmp_path / "log.parquet", list[tuple[str, float]]()
    convert(write_folder(tmp_path / "ml", "u.data", ratings), path, lambda doing, share: shares.append((doing, share)))
    assert rows_of(path) == in_time(ratings, NAMES)
    assert pq.ParquetFile(path).num_row_groups == 14
    assert shares == sorted(shares)
    assert list(dict.fromkeys(doing for doing, share in shares if share == 1)) == ["read", "written"]
