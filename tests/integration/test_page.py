"""The page in a real browser: a pipeline, a server and a monitor at work, seen through headless Chromium."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.cluster_check.checks import unseen
from tests.ports import free_port
from tests.serving.authority import AUDIENCE, ISSUER, Authority, Issuer
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from tests.weir.up.damage import whole_store
from weir.config import Settings
from weir.contracts import Store, WindowLog
from weir.page.server import page_served
from weir.serving.access_config import ClientConfig
from weir.session import REMEMBERED

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
CHROMIUM: Final = shutil.which("chromium")
DRIVER: Final = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no headless browser: apt install chromium chromium-driver, or make tools"
    ),
    pytest.mark.timeout(600),
]

ITEMS: Final = 40
EVIL: Final = "<img src=x onerror=\"document.title='owned'\">"
WAIT: Final = 240.0


@dataclass
class Stages:
    """The running processes: their page, and the folder of their log."""

    address: str
    log: Path
    store: Store

    def add(self, name: str, lines: list[str]) -> None:
        """Append a segment to the log, whole at once."""
        (self.log / f"{name}.tmp").write_text("".join(f"{line}\n" for line in lines))
        (self.log / f"{name}.tmp").rename(self.log / f"{name}.jsonl")


def event(user: int, item: int, second: int) -> str:
    known = {"user_id": f"user-{user}", "item_id": f"item-{item}", "timestamp": 1_700_000_000 + second}
    return json.dumps(known | {"event_id": f"{user}-{item}-{second}"})


def until(what: Callable[[], Any], why: str) -> Any:
    """Return what is found in the end."""
    ends = time.monotonic() + WAIT
    while time.monotonic() < ends:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {WAIT:.0f} s: {why}")


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    folder = tmp_path_factory.mktemp("page")
    log, store = folder / "log", Store(str(folder / "store"))
    log.mkdir()
    ports = {name: free_port() for name in ("pipeline", "serving", "monitor", "grpc", "page")}
    settings = Settings.model_validate(
        {
            "store": store.url,
            "pipeline": {
                "log": str(log),
                "metrics_port": ports["pipeline"],
                "window_seconds": 60,
                "allowed_lateness_seconds": 0,
                "idle_seconds": 0.5,
            },
            "trainer": {"metrics_port": free_port()},
            "serving": {"port": ports["grpc"], "metrics_port": ports["serving"], "poll_seconds": 0.05},
            "monitor": {
                "target": f"127.0.0.1:{ports['grpc']}",
                "metrics_port": ports["monitor"],
                "page_port": ports["page"],
                "queries_per_request": 8,
                "k": [10, 20],
            },
        }
    )
    store.write(REMEMBERED, settings.model_dump_json().encode())
    found = Stages(f"http://127.0.0.1:{ports['page']}", log, store)
    found.add("first", [event(n % 20, (3 * n) % ITEMS, n) for n in range(300)] + [EVIL])
    write_bundle(store, "00000000-0000000001-a", Catalogue.random(ITEMS))
    commands = [("ingest", "--follow"), ("serve",), ("monitor",)]
    output = (folder / "output").open("w")
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "weir", *command, "--store", store.url], stdout=output, stderr=subprocess.STDOUT
        )
        for command in commands
    ]
    try:
        yield found
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait(60)
        output.close()


@pytest.fixture
def browser() -> Iterator[Any]:
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    options.accept_insecure_certs = True  # of a test's own authority
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    driver.set_page_load_timeout(WAIT)
    driver.set_script_timeout(WAIT)
    try:
        yield driver
        assert driver.get_log("browser") == []
    finally:
        driver.quit()


def text(browser: Any, selector: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return list(browser.execute_script(script, selector))


def open_page(browser: Any, stages: Stages, path: str = "/") -> None:
    """Open the page, once it is served, and wait until it shows a bundle and windows."""

    def opened() -> bool:
        try:
            browser.get(stages.address + path)
        except selenium.remote.webdriver.WebDriverException:
            return False
        return True

    until(opened, "the page is served")
    browser.get_log("browser")
    until(lambda: text(browser, "#live") == "live", "the stream is connected")
    until(lambda: "00000000-0000000001-a" in text(browser, "#served"), "a bundle is served")
    until(lambda: shown_windows(browser) > 0, "windows are committed")


def shown_windows(browser: Any) -> int:
    shown = texts(browser, "#path .value")[1]
    return int(shown.replace(",", "")) if shown.replace(",", "").isdigit() else 0


def test_it_shows_the_stages_as_they_are_and_goes_on(stages: Stages, browser: Any) -> None:
    open_page(browser, stages)
    assert texts(browser, "#path .name") == ["log", "windows", "trainer", "bundle", "server", "monitor"]
    quiet = texts(browser, "#path .stage.quiet .name")
    assert quiet == ["trainer"], "no trainer runs here"
    assert unseen(stages.address.removeprefix("http://")) == quiet, "the check of a cluster sees it, too"
    before = shown_windows(browser)
    assert before <= len(WindowLog(stages.store).committed())
    stages.add("second", [event(n % 20, n % ITEMS, 1000 + n) for n in range(300)])
    until(lambda: shown_windows(browser) > before, "what is new is shown without loading again")
    total = sum(pane.counts.events for pane in WindowLog(stages.store).committed())
    until(lambda: f"{total} events" in text(browser, "#path .note"), "all events are shown")
    drawn = "return document.querySelectorAll('.uplot canvas').length"
    assert browser.execute_script(drawn) == len(texts(browser, ".chart"))
    until(lambda: "of 40" in text(browser, "#map-note") or "40 most popular" in text(browser, "#map-note"), "a map")


def test_a_refused_line_is_shown_as_text(stages: Stages, browser: Any) -> None:
    open_page(browser, stages)
    until(lambda: EVIL in texts(browser, "#dead tbody td"), "the line is there")
    assert browser.title == "weir"
    assert "malformed json" in text(browser, "#reasons")


def test_a_click_moves_the_answer(stages: Stages, browser: Any) -> None:
    open_page(browser, stages, "/?user=user-3")
    rows = "#answer tbody tr td:nth-child(2)"
    until(lambda: len(texts(browser, rows)) == 10, "the user of the address is asked for")
    before = texts(browser, rows)
    browser.execute_script("document.querySelector('#answer tbody tr:nth-child(10) button.click').click()")
    note = until(lambda: (said := text(browser, "#answer-note")) and "changed" in said and said, "the answer changes")
    assert "by the click alone" in note
    after = texts(browser, rows)
    assert after != before
    for item, moved in zip(after, texts(browser, "#answer tbody td.moved"), strict=True):
        by = before.index(item) - after.index(item) if item in before else None
        assert moved == ("new" if by is None else f"↑ {by}" if by > 0 else f"↓ {-by}" if by < 0 else "=")
    (clicked,) = stages.log.glob("click-*.jsonl")
    assert json.loads(clicked.read_text())["item_id"] == before[9]


def test_the_neighbours_of_an_item_light_up_by_keyboard_alone(stages: Stages, browser: Any) -> None:
    open_page(browser, stages)
    until(lambda: "40 most popular" in text(browser, "#map-note"), "a map")
    pixels = "return document.querySelector('#map canvas').toDataURL()"
    before = browser.execute_script(pixels)
    field = browser.find_element("css selector", "#map input")
    field.send_keys("item-7" + selenium.Keys.ENTER)
    until(lambda: text(browser, "#map-note").startswith("near item-7: item-"), "neighbours are named")
    assert browser.execute_script(pixels) != before


def test_off_loopback_it_asks_for_a_token_and_shows_no_data(tmp_path: Path, browser: Any) -> None:
    store, issuer, authority = whole_store(str(tmp_path / "store")), Issuer(), Authority(tmp_path)
    token = tmp_path / "token"
    token.write_text(issuer.token())
    client = {"tls": True, "ca_file": str(authority.file), "token_file": str(token)}
    auth = {"jwks": issuer.publish(tmp_path / "jwks.json"), "issuer": ISSUER, "audience": AUDIENCE}
    serving = {"tls": authority.files("server"), "auth": auth}
    with ServerProcess(store, client=ClientConfig.model_validate(client), **serving) as server:
        server.serving("00000000-0000000001")
        monitor = {"target": server.target, "page_host": "0.0.0.0", "page_port": 0}  # noqa: S104
        stages = {name: {"metrics_port": 1} for name in ("pipeline", "trainer")}
        settings = Settings.model_validate({"serving": serving, "monitor": monitor, "client": client, **stages})
        with page_served(settings, store) as address:
            browser.get(f"https://127.0.0.1:{str(address).rpartition(':')[2]}/")
            visible = "return document.querySelector('#door').checkVisibility()"
            until(lambda: browser.execute_script(visible), "it asks for a token")
            assert "00000000-0000000001" not in browser.page_source
            field = browser.find_element("css selector", "#door input")
            field.send_keys("nonsense" + selenium.Keys.ENTER)
            until(lambda: "the token is not valid" in text(browser, "#door p"), "it says why it refuses one")
            field.clear()
            field.send_keys(issuer.token(sub="ann") + selenium.Keys.ENTER)
            until(lambda: "00000000-0000000001" in text(browser, "#served"), "it shows what is served")
            assert not browser.execute_script(visible)
            assert "weir-token" not in browser.execute_script("return document.cookie")
            assert not browser.execute_script("return document.querySelector('#ask form').checkVisibility()")
    # Refusals, which the browser notes.
    assert all("401" in entry["message"] for entry in browser.get_log("browser") if entry["source"] == "network")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 820, 1400])
def test_nothing_is_wider_than_the_screen_and_both_schemes_are_readable(
    stages: Stages, browser: Any, width: int, dark: bool
) -> None:
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    open_page(browser, stages, "/?user=user-3")
    until(lambda: len(texts(browser, "#answer tbody tr")) == 10, "an answer")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    colors = browser.execute_script(
        "const style = getComputedStyle(document.querySelector('section'));"
        "return ['ink', 'soft', 'accent', 'bad', 'good'].map((name) =>"
        " style.getPropertyValue(`--${name}`).trim()).concat(style.getPropertyValue('--card').trim())"
    )
    *inks, card = colors
    assert all(contrast(ink, card) >= 4.5 for ink in inks), colors


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, as WCAG 2 defines it; 4.5 is wanted of text."""

    def luminance(color: str) -> float:
        shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
