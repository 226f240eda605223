"""The site in Chromium: no error, readable on a phone, and a search that finds.

Needs Chromium and its driver (Debian: chromium, chromium-driver). Without them these tests fail;
`nox -s docs` leaves them out then, and says so.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from site_check import read

PHONE = 360
# Chromium looks for nothing of its own on the network.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# The first part of each must be among the results of a search for the second.
SEARCHES = (
    ("operators/moe.html", "cutlass_fused_moe"),
    ("operators/gemm.html", "mm_fp4"),
    ("troubleshooting.html", "no compiled kernel in this wheel"),
    ("troubleshooting.html", "fp4aot is damaged"),
    ("troubleshooting.html", "no CUDA toolkit on this machine"),
)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *arguments):
        """Say nothing."""


@pytest.fixture(scope="module")
def address(site):
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def program(variable: str, *names: str) -> str:
    for name in (os.environ.get(variable, ""), *names):
        if name and (found := shutil.which(name)):
            return found
    pytest.fail(f"there is no {' or '.join(names)}; install it, or set {variable} to its path")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Start a browser of a certain width; all of them end with the module."""
    started = []

    def begin(width: int, *, phone: bool = False, flags: tuple[str, ...] = ()):
        options = webdriver.ChromeOptions()
        options.binary_location = program("FP4AOT_CHROMIUM", "chromium", "chromium-browser")
        profile = tmp_path_factory.mktemp("profile")
        for flag in (*FLAGS, f"--user-data-dir={profile}", *flags):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if phone:
            metrics = {"width": width, "height": 740, "pixelRatio": 2}
            options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
        driver = program("FP4AOT_CHROMEDRIVER", "chromedriver")
        browser = webdriver.Chrome(options=options, service=Service(driver))
        started.append(browser)
        browser.set_page_load_timeout(60)
        browser.set_window_size(width, 900)
        return browser

    yield begin
    for browser in started:
        browser.quit()


@pytest.fixture(scope="module")
def desk(start):
    return start(1280)


@pytest.fixture(scope="module")
def phone(start):
    return start(PHONE, phone=True)


@pytest.fixture(scope="module")
def paths(site) -> list[str]:
    found = list(read(site))
    assert len(found) > 25
    return found


def complaints(browser, *levels: str) -> list[str]:
    """What the console said since it was asked last; a missing icon is not the site's."""
    return [
        entry["message"]
        for entry in browser.get_log("browser")
        if (not levels or entry["level"] in levels) and "favicon" not in entry["message"]
    ]


def test_no_page_has_an_error(desk, address, paths):
    found = {}
    for path in paths:
        desk.get(f"{address}/{path}")
        if said := complaints(desk):
            found[path] = said
    assert found == {}


def test_every_picture_is_shown(desk, address, paths):
    broken = {}
    for path in paths:
        desk.get(f"{address}/{path}")
        absent = desk.execute_script(
            "return [...document.images].filter(i => !(i.complete && i.naturalWidth))"
            ".map(i => i.src)"
        )
        if absent:
            broken[path] = absent
    assert broken == {}


WIDER = """
const width = document.documentElement.clientWidth;
// A table or a block of code may scroll by itself; what is cut off is not readable.
const scrolls = element => {
  for (let one = element; one.tagName !== 'ARTICLE'; one = one.parentElement) {
    if (['auto', 'scroll'].includes(getComputedStyle(one).overflowX)) return true;
  }
  return false;
};
const out = [...document.querySelectorAll('article *')]
  .filter(e => e.getBoundingClientRect().right > width + 1 && !scrolls(e))
  .map(e => e.tagName + ' ' + e.textContent.trim().slice(0, 60));
return [document.documentElement.scrollWidth, width, out.slice(0, 5)];
"""


def test_no_page_is_wider_than_a_phone(phone, address, paths):
    found = {}
    for path in paths:
        phone.get(f"{address}/{path}")
        scroll, width, out = phone.execute_script(WIDER)
        assert width == PHONE
        if scroll > width or out:
            found[path] = (scroll, out)
    assert found == {}


def test_the_check_of_widths_finds_what_is_too_wide(phone, address):
    phone.get(f"{address}/index.html")
    phone.execute_script(
        "const wide = document.createElement('div'); wide.style.width = '500px';"
        "wide.textContent = 'wide'; document.querySelector('article').append(wide)"
    )
    scroll, width, out = phone.execute_script(WIDER)
    assert scroll > width or out == ["DIV wide"]


def test_a_phone_can_open_the_navigation(phone, address):
    phone.get(f"{address}/index.html")
    link = phone.find_element(By.CSS_SELECTOR, ".sidebar-tree a[href='install.html']")
    assert link.rect["x"] + link.rect["width"] <= 0 or not link.is_displayed()
    buttons = phone.find_elements(By.CSS_SELECTOR, "label[for='__navigation']")
    next(button for button in buttons if button.is_displayed()).click()
    WebDriverWait(phone, 10).until(lambda _: link.rect["x"] >= 0 and link.is_displayed())
    link.click()
    WebDriverWait(phone, 10).until(lambda browser: browser.title.startswith("Install"))


def results(browser, query: str) -> list[str]:
    """Type a query into the search field of the page, and return where the results lead."""
    field = browser.find_element(By.CSS_SELECTOR, "input[name='q']")
    field.send_keys(query)
    field.submit()
    wait = WebDriverWait(browser, 30)
    wait.until(lambda found: "q=" in found.current_url)
    wait.until(
        lambda found: found.find_elements(By.CSS_SELECTOR, "#search-results .search-summary")
    )
    wait.until(
        lambda found: (
            "…" not in (text := found.find_element(By.CSS_SELECTOR, ".search-summary").text)
            and "Searching" not in text
        )
    )
    links = browser.find_elements(By.CSS_SELECTOR, "#search-results li a")
    return [link.get_attribute("href") for link in links]


@pytest.mark.parametrize(("page", "query"), SEARCHES)
def test_a_search_finds(desk, address, page, query):
    desk.get(f"{address}/index.html")
    found = results(desk, query)
    assert any(f"{address}/{page}" in link for link in found), found
    # Sphinx's search warns about anchors with a dot, and shows the start of the page instead.
    assert complaints(desk, "SEVERE") == []


def test_a_search_for_nothing_finds_nothing(desk, address):
    desk.get(f"{address}/index.html")
    assert results(desk, "qwertzuiopasdf") == []


def test_the_folder_works_without_a_server(start, site):
    browser = start(1280, flags=("--proxy-server=127.0.0.1:9",))
    browser.get((site / "index.html").as_uri())
    assert complaints(browser) == []
    found = results(browser, "cutlass_fused_moe")
    assert any("operators/moe.html" in link for link in found), found


INSIDE = """
const boxes = [...document.querySelectorAll('rect')].map(r => r.getBBox());
return [...document.querySelectorAll('text')].filter(text => {
  const t = text.getBBox();
  return !boxes.some(b => b.x <= t.x && b.x + b.width >= t.x + t.width &&
                          b.y <= t.y && b.y + b.height >= t.y + t.height && b.height < 120) &&
         text.getAttribute('text-anchor') === 'middle';
}).map(text => text.textContent);
"""


def test_words_stay_in_their_boxes(desk):
    pictures = sorted((Path(__file__).resolve().parents[2] / "docs" / "pictures").glob("*.svg"))
    assert len(pictures) == 3
    for picture in pictures:
        desk.get(picture.as_uri())
        assert desk.execute_script(INSIDE) == [], picture.name
