"""The HTML report of a build: what it says, where its bars lie, and that it needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.build_report import colours, figures, report_html, write_report
from aot.build_report.memory import curve, thinned
from aot.build_report.timeline import lanes, span, ticks
from aot.build_report.words import duration, moment, percent, safe, size, tick
from aot.compile.record import BuildRecord, JobRecord

HOSTILE = """</title></style><script>alert("1")</script>' onload='x' & <b>"""
VOID = {"meta"}


# -- Records --


def job(name: str, start: float | None = None, end: float | None = None, **more) -> JobRecord:
    """A job that was compiled where it has a start, else one that was kept."""
    ran = start is not None
    base = JobRecord(
        name,
        "compiled" if ran else "kept",
        0 if ran else None,
        start,
        end,
        expected_megabytes=1000,
        expected_seconds=10.0,
        peak_megabytes=800 if ran else None,
        attempts=int(ran),
    )
    return replace(base, **more)


def record(*jobs: JobRecord, **more) -> BuildRecord:
    base = BuildRecord(
        preset="quick",
        plan_hash="0123456789abcdef" * 4,
        versions={"flashinfer": "0.7.2", "cuda": "13.0", "something": "1.2.3"},
        machine="x86_64",
        started="2026-11-30T06:25:00+01:00",
        seconds=100.0,
        workers=2,
        limit_megabytes=8000,
        jobs=jobs,
    )
    return replace(base, **more)


def example() -> BuildRecord:
    """All that can happen to a unit."""
    return record(
        job("gemm/slow", 0.0, 60.0, peak_megabytes=2500),
        job("gemm/again", 60.0, 90.0, attempts=2),
        job("gemm/cached", 90.0, 90.5, origin="cache", peak_megabytes=None),
        job("kv/kept"),
        job("kv/imported", origin="imported"),
        job(
            *("moe/broken", 0.0, 40.0),
            worker=1,
            origin=None,
            attempts=2,
            failure="out of memory",
        ),
        job("moe/never", origin=None),
        job("moe/running", 40.0, None, worker=1, origin=None),
        samples=((0.0, 500), (40.0, 5000), (90.0, 100)),
        cache_hits=1,
        cache_misses=3,
    )


times = st.floats(0, 1e6, allow_nan=False)
names = st.text(min_size=1, max_size=12) | st.sampled_from(["gemm/a", "gemm/b", "operators/c"])
origins = st.sampled_from(["compiled", "cache", "kept", "imported", None])


@st.composite
def any_jobs(draw) -> JobRecord:
    """Whatever fits into a record, also what no scheduler would do."""
    start = draw(st.none() | times)
    end = None if start is None else draw(st.none() | times.map(lambda time: start + time))
    return JobRecord(
        name=draw(names),
        origin=draw(origins),
        worker=None if start is None else draw(st.integers(0, 70)),
        start=start,
        end=end,
        expected_megabytes=draw(st.integers(0, 20_000)),
        expected_seconds=draw(st.floats(0, 1000)),
        peak_megabytes=draw(st.none() | st.integers(0, 20_000)),
        attempts=draw(st.integers(0, 3)),
        failure=draw(st.none() | st.text(max_size=30)),
    )


any_records = st.builds(
    record,
    preset=st.text(max_size=10),
    plan_hash=st.text(max_size=10),
    machine=st.text(max_size=10),
    started=st.text(max_size=10),
    versions=st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
    seconds=times,
    workers=st.integers(1, 64),
    limit_megabytes=st.integers(0, 500_000),
    jobs=st.lists(any_jobs(), max_size=25).map(tuple),
    samples=st.lists(st.tuples(times, st.integers(0, 500_000)), max_size=20).map(tuple),
    cache_hits=st.none() | st.integers(0, 99),
    cache_misses=st.none() | st.integers(0, 99),
)


@st.composite
def scheduled(draw) -> BuildRecord:
    """Workers that do one thing after the other, without a break or with one."""
    jobs: list[JobRecord] = []
    end = 0.0
    workers = draw(st.sampled_from([1, 2, 16, 64]))
    gaps = st.just(0.0) | st.floats(0, 100)
    lengths = st.floats(0, 1) | st.floats(0, 1000)
    for worker in range(workers):
        now = 0.0
        for gap, length in draw(st.lists(st.tuples(gaps, lengths), max_size=8)):
            start, now = now + gap, now + gap + length
            jobs.append(job(f"group{len(jobs) % 20}/unit{len(jobs)}", start, now, worker=worker))
        end = max(end, now)
    return record(*jobs, seconds=end, workers=workers)


# -- Reading a page --


@dataclass(frozen=True)
class DrawnBar:
    unit: int
    x: float
    y: float
    width: float
    height: float
    tooltip: str
    classes: frozenset[str]

    @property
    def right(self) -> float:
        return self.x + self.width


@dataclass
class Page(HTMLParser):
    """What a browser would find; fails on a tag that is not closed."""

    text: str
    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    bars: list[DrawnBar] = field(default_factory=list)
    plot_height: float = 0.0
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.link = ""
        self.bar: dict[str, str] = {}
        self.feed(self.text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        assert len(values) == len(attrs), f"an attribute of {tag} is there twice"
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in values.items()]
        classes = values.get("class", "").split()
        if tag == "a":
            self.link = values["href"]
        elif tag == "svg" and "plot" in classes and not self.plot_height:
            self.plot_height = float(values["height"])
        elif tag == "svg" and "bar" in classes:
            self.bar = values

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.words.append(data)
        if self.open and self.open[-1] == "title" and "svg" in self.open and self.bar:
            value = self.bar
            for name in ("x", "width"):
                assert value[name].endswith("%")
            self.bars.append(
                DrawnBar(
                    unit=int(self.link.removeprefix("#unit-")),
                    x=float(value["x"][:-1]),
                    y=float(value["y"]),
                    width=float(value["width"][:-1]),
                    height=float(value["height"]),
                    tooltip=data,
                    classes=frozenset(value["class"].split()),
                )
            )
            self.bar = {}

    def has(self, words: str) -> bool:
        flat = " ".join(" ".join(self.words).replace("\N{NO-BREAK SPACE}", " ").split())
        return words in flat


def page(build: BuildRecord) -> Page:
    return Page(report_html(build))


# -- Any record --


@given(any_records)
def test_any_record_gives_a_page_that_needs_nothing_else(build: BuildRecord) -> None:
    text = report_html(build)
    assert text.isascii()
    found = Page(text)
    assert {"script", "link", "img", "iframe", "object", "base"}.isdisjoint(found.tags)
    for tag, name, value in found.attributes:
        assert not name.startswith("on"), name
        assert name not in {"src", "srcset", "style", "data", "action"}, (tag, name)
        if "href" in name:
            assert re.fullmatch(r"#unit-\d+", value)
        if "url" in value:
            assert name in {"class", "content"} or re.fullmatch(r"url\(#(stripes|dots)\)", value)
    identifiers = [value for _, name, value in found.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    links = {value.lstrip("#") for _, name, value in found.attributes if name == "href"}
    assert links <= set(identifiers)


@given(any_records)
def test_each_job_that_ran_has_one_bar_within_the_drawing(build: BuildRecord) -> None:
    found = page(build)
    ran = [number for number, one in enumerate(build.jobs) if one.worker is not None]
    assert sorted(bar.unit for bar in found.bars) == ran
    for bar in found.bars:
        assert 0 <= bar.x <= bar.right <= 100 + 1e-9
        assert bar.height > 0
        assert bar.y >= 0
        assert bar.y + bar.height <= found.plot_height


@given(scheduled())
def test_bars_of_a_worker_do_not_overlap(build: BuildRecord) -> None:
    found = page(build)
    by_lane: dict[float, list[DrawnBar]] = {}
    for bar in found.bars:
        by_lane.setdefault(bar.y, []).append(bar)
    assert len(by_lane) == len({one.worker for one in build.jobs})
    for lane in by_lane.values():
        assert len({build.jobs[bar.unit].worker for bar in lane}) == 1
        ordered = sorted(lane, key=lambda bar: (bar.x, bar.right))
        for left, right in pairwise(ordered):
            assert left.right <= right.x + 1e-9
    tops = sorted(by_lane)
    for top, following in pairwise(tops):
        assert top + by_lane[top][0].height <= following


@given(scheduled())
def test_bars_are_where_their_times_are(build: BuildRecord) -> None:
    whole = span(build)
    for lane in lanes(build):
        for bar in lane.bars:
            assert bar.job.start is not None
            assert bar.job.end is not None
            # Narrow bars are widened, by less than can be mistaken.
            assert bar.left == pytest.approx(bar.job.start / whole * 100, abs=0.151)
            assert bar.right == pytest.approx(bar.job.end / whole * 100, abs=0.151)


def test_a_bar_too_narrow_to_see_is_widened_where_there_is_room() -> None:
    def widths(*spans: tuple[float, float]) -> list[float]:
        build = record(*(job(f"a/{start}", start, end) for start, end in spans), seconds=10_000.0)
        return [bar.width for bar in lanes(build)[0].bars]

    assert widths((0, 0.1), (5000, 5000)) == [0.15, 0.15]
    # To the left, at the end of the drawing; between two others, not at all.
    assert widths((10_000, 10_000)) == [0.15]
    assert widths((0, 10_000), (10_000, 10_000))[1] == 0.0
    assert widths((0, 5000), (5000, 5001), (5001, 10_000))[1] == pytest.approx(0.01)


# -- What it says --


def test_the_numbers_of_the_whole_build() -> None:
    found = page(example())
    for words in (
        "Failed: 1 of 8 units, and 2 more without an object.",
        "for x86_64 \N{MIDDLE DOT} FlashInfer 0.7.2 \N{MIDDLE DOT} CUDA 13.0",
        "1 failed, 2 compiled, 1 from the cache, 1 kept, 1 imported, 1 not finished, 1 not started",
        "2 units started again",
        "1 hit 3 misses, 25 % found",
        # 60 + 30 + 0.5 + 40 of 2 * 100 seconds
        "busy 65 % of the time",
        "5.0 GB 62 % of the limit 8.0 GB",
        "2026-11-30 06:25:00 UTC+01:00",
        "something 1.2.3",
        "0123456789abcdef" * 4,
    ):
        assert found.has(words), words


def test_failures_stand_first_with_their_reason() -> None:
    text = report_html(example())
    heading, tiles = text.index("What failed"), text.index('class="tiles"')
    section = text[heading:tiles]
    assert "moe/broken" in section
    assert "<pre>out of memory</pre>" in section
    assert "at attempt 2" in section
    assert "What failed" not in report_html(record(job("a/b", 0.0, 1.0)))


def test_failures_retries_and_what_did_not_end_are_marked() -> None:
    found = page(example())
    marks = [value for tag, name, value in found.attributes if (tag, name) == ("circle", "class")]
    # One on its bar, one in the legend.
    assert marks.count("failed") == 2
    assert marks.count("again") == 2
    by_unit = {bar.unit: bar for bar in found.bars}
    assert "cache" in by_unit[2].classes
    assert "not-finished" in by_unit[7].classes
    assert by_unit[7].right == 100.0
    assert {"cache", "not-finished"}.isdisjoint(by_unit[0].classes)
    for words in ("from the cache", "not finished", "started again", "failed"):
        assert found.has(words)


def test_a_bar_tells_its_name_times_and_memory() -> None:
    (tooltip,) = (bar.tooltip for bar in page(example()).bars if bar.unit == 1)
    assert tooltip.replace("\N{NO-BREAK SPACE}", " ").splitlines() == [
        "gemm/again",
        "compiled, worker 0",
        "30 s (10 s expected), from 1 min 00 s to 1 min 30 s",
        "memory 0.8 GB (1.0 GB expected)",
        "started 2 times; this is the last",
    ]


def rows(text: str, heading: str) -> list[str]:
    """The words of each row of the table below a heading."""
    table = text[text.index(f"<h2>{heading}</h2>") :]
    body = table[table.index("<tbody>") : table.index("</tbody>")]
    plain = [re.sub(r"<[^>]*>", " ", row) for row in body.split("</tr>")[:-1]]
    return [" ".join(row.replace("&#160;", " ").replace("&#215;", "x").split()) for row in plain]


def test_the_slowest_come_first_with_their_ratios() -> None:
    text = report_html(example())
    assert rows(text, "Slowest units")[:2] == [
        "gemm/slow 1 min 00 s 10 s 6.00x 2.5 GB 1.0 GB 2.50x",
        "moe/broken failed 40 s 10 s 4.00x 0.8 GB 1.0 GB 0.80x",
    ]
    # What came from the cache was not compiled, so its time says nothing about the estimate.
    cached = rows(text, "Slowest units")[3]
    assert cached.startswith("gemm/cached from the cache 0.50 s 10 s &#8211;")
    many = record(*(job(f"a/{n}", float(n), float(2 * n)) for n in range(1, 41)))
    assert len(rows(report_html(many), "Slowest units")) == 15
    assert page(many).has("The 15 slowest of 40 that ran")


def test_groups_have_their_units_time_and_largest_memory() -> None:
    assert rows(report_html(example()), "Groups") == [
        "gemm 3 2 compiled, 1 from the cache 1 min 30 s 69 % 2.5 GB",
        "moe 3 1 failed, 1 not finished, 1 not started 40 s 31 % 0.8 GB",
        "kv 2 1 kept, 1 imported &#8211; &#8211;",
    ]


def test_all_units_are_in_the_order_of_the_plan() -> None:
    build = example()
    shown = rows(report_html(build), "All units")
    assert [row.split()[0] for row in shown] == [one.name for one in build.jobs]
    assert shown[1] == "gemm/again compiled 0 1 min 00 s 30 s 0.8 GB 2"
    assert shown[6] == "moe/never not started &#8211; &#8211; &#8211; &#8211; 0"


def test_workers_that_ran_nothing_are_named_once() -> None:
    build = record(job("a/b", 0.0, 5.0), job("a/c", 0.0, 5.0, worker=2), workers=64)
    found = page(build)
    assert found.has("Workers 3 to 63 ran nothing.")
    # The lane of worker 1 is drawn: it lies between two others.
    assert len(lanes(build)) == 3
    assert page(replace(build, workers=4)).has("Worker 3 ran nothing.")
    assert not page(replace(build, workers=3)).has("ran nothing")


# -- Builds in which little happened --


def test_an_empty_plan() -> None:
    found = page(record(seconds=0.0))
    assert found.bars == []
    assert found.has("The plan has no units")
    assert "table" not in found.tags


def test_nothing_had_to_be_compiled() -> None:
    found = page(record(job("a/b"), job("a/c", origin="imported")))
    assert found.bars == []
    assert found.has("Nothing had to be compiled: 2 units, and all were there.")
    assert found.has("No compiler ran in this build")
    assert not found.has("Slowest units")
    assert found.has("none was used")
    assert len(rows(found.text, "All units")) == 2


def test_memory_that_nobody_measured() -> None:
    found = page(record(job("a/b", 0.0, 1.0)))
    assert found.has("Memory was not measured in this build.")
    assert found.has("nothing measured, limit 8.0 GB")


# -- Foreign text --


def test_foreign_text_is_shown_and_is_nothing_else() -> None:
    build = record(
        job(f"{HOSTILE}/{HOSTILE}", 0.0, 90.0, origin=None, failure=f"{HOSTILE}\nsecond line"),
        preset=HOSTILE,
        plan_hash=HOSTILE,
        machine=HOSTILE,
        started=HOSTILE,
        versions={HOSTILE: HOSTILE, "cuda": HOSTILE},
    )
    found = page(build)
    assert "script" not in found.tags
    assert "b" not in found.tags
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert found.words.count(f"Build of {HOSTILE}") == 2
    assert f"{HOSTILE}\nsecond line" in found.words
    assert any(HOSTILE in bar.tooltip for bar in found.bars)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31merror\x1b[0m: x", "error: x"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("a\x00b\x07", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"),
        ("""<'">&""", "&lt;&#x27;&quot;&gt;&amp;"),
    ],
)
def test_what_terminals_understand_is_left_out(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_bytes_that_were_no_text_do_no_harm() -> None:
    broken = b"caf\xe9".decode("utf-8", "surrogateescape")
    text = report_html(record(job(f"a/{broken}", 0.0, 1.0, failure=broken)))
    assert text.encode()


# -- The file --


def test_the_policy_allows_the_style_of_the_page_alone() -> None:
    text = report_html(example())
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r"@import|url\(|https?:", style)
    # Before the style: what stands in front of a policy is not bound by it.
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_it_is_written_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_report(example(), path)
    assert path.read_text() == report_html(example())
    assert list(path.parent.iterdir()) == [path]


def test_the_same_record_gives_the_same_page_also_by_way_of_json() -> None:
    build = example()
    assert report_html(BuildRecord.from_json(build.to_json())) == report_html(build)


# -- Parts --


@pytest.mark.parametrize(
    ("one", "outcome"),
    [
        (job("a/b", 0.0, 1.0), "compiled"),
        (job("a/b", 0.0, 1.0, origin="cache"), "cache"),
        (job("a/b"), "kept"),
        (job("a/b", origin="imported"), "imported"),
        (job("a/b", 0.0, 1.0, origin=None, failure="x"), "failed"),
        (job("a/b", origin=None, failure="x"), "failed"),
        (job("a/b", 0.0, None, origin=None), "not finished"),
        (job("a/b", origin=None), "not started"),
    ],
)
def test_what_became_of_a_job(one: JobRecord, outcome: str) -> None:
    assert figures.outcome(one) == outcome


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((None, "\N{EN DASH}"), (0.0, "0 s"), (0.24, "0.24 s"), (0.996, "1.0 s")),
        *((8.32, "8.3 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 00 s")),
        *((185, "3 min 05 s"), (3599.6, "1 h 00 min"), (3720, "1 h 02 min")),
        (100 * 3600, "100 h 00 min"),
    ],
)
def test_durations_in_words(seconds: float | None, words: str) -> None:
    assert duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "0"), (0.2, "0.2 s"), (30, "30 s"), (60, "1 min"), (90, "1:30")),
        *((600, "10 min"), (3600, "1 h"), (5400, "1 h 30"), (86400, "24 h")),
    ],
)
def test_ticks_in_words(seconds: float, words: str) -> None:
    assert tick(seconds).replace("\N{NO-BREAK SPACE}", " ") == words


@pytest.mark.parametrize(
    ("megabytes", "words"),
    [(None, "\N{EN DASH}"), (0, "0.0 GB"), (30, "0.03 GB"), (6340, "6.3 GB")],
)
def test_memory_in_words(megabytes: int | None, words: str) -> None:
    assert size(megabytes).replace("\N{NO-BREAK SPACE}", " ") == words


@pytest.mark.parametrize(("share", "words"), [(0, "0 %"), (0.001, "&lt;1 %"), (1, "100 %")])
def test_shares_in_words(share: float, words: str) -> None:
    assert percent(share).replace("\N{NO-BREAK SPACE}", " ") == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-11-30T06:25:00+00:00", "2026-11-30 06:25:00 UTC"),
        ("2026-11-30T06:25:00", "2026-11-30 06:25:00"),
        ("yesterday", "yesterday"),
    ],
)
def test_moments_in_words(text: str, words: str) -> None:
    assert moment(text) == words


@given(st.floats(0.001, 1e7))
def test_a_few_round_ticks(whole: float) -> None:
    found = ticks(whole)
    assert found[0] == 0
    assert len(found) <= 9
    assert found[-1] <= whole + 1e-6
    assert all(left < right for left, right in pairwise(found))


@pytest.mark.parametrize("whole", [1, 45, 600, 3212, 22668, 86400])
def test_enough_ticks_to_read_a_time(whole: float) -> None:
    assert len(ticks(whole)) >= 4
    # All can be told apart as they are written.
    assert len(set(map(tick, ticks(whole)))) == len(ticks(whole))


@given(st.lists(st.tuples(times, st.integers(0, 10**6)), max_size=3000))
def test_the_curve_keeps_its_peak_and_its_ends(samples: list[tuple[float, int]]) -> None:
    samples.sort()
    kept = thinned(samples)
    assert len(kept) <= 800
    assert list(kept) == sorted(kept, key=lambda sample: sample[0])
    assert set(kept) <= set(samples)
    if samples:
        assert max(size for _, size in kept) == max(size for _, size in samples)
        assert (kept[0], kept[-1]) == (samples[0], samples[-1])


def test_a_long_build_is_thinned() -> None:
    samples = [(float(n), 100 + n % 7) for n in range(36_000)]
    samples[12_345] = (12_345.0, 9999)
    kept = thinned(samples)
    assert 600 < len(kept) <= 800
    assert (12_345.0, 9999) in kept


@given(any_records)
def test_the_curve_lies_within_the_drawing(build: BuildRecord) -> None:
    found = curve(build)
    if found is None:
        assert build.peak_megabytes == 0
        return
    heights = [y for _, y in found.points] + [y for _, y in found.grid]
    assert all(0 <= value <= 100 for value in heights + [x for x, _ in found.points])
    assert found.peak[1] == max(y for _, y in found.points) < 100
    # A limit of a millionth of the peak lies on the ground.
    assert found.limit is None or 0 <= found.limit < 100
    assert 1 <= len(found.grid) <= 6


@pytest.mark.parametrize(("limit", "drawn"), [(8000, True), (20_000, True), (21_000, False)])
def test_a_limit_far_above_is_named_and_not_drawn(limit: int, *, drawn: bool) -> None:
    build = record(job("a/b", 0.0, 1.0), samples=((0.0, 5000),), limit_megabytes=limit)
    found = curve(build)
    assert found is not None
    assert (found.limit is not None) == drawn
    assert page(build).has("above the drawing") != drawn
    assert ('class="limit"' in report_html(build)) == drawn


# -- Colours: as they look, also to people who see fewer --

STYLE = Path(colours.__file__).with_name("page.css").read_text()


def matrix(*numbers: float) -> np.ndarray:
    return np.array(numbers).reshape(3, 3)


# Machado, Oliveira and Fernandes (2009), full severity, for linear RGB.
SIGHTS = {
    "all colours": np.eye(3),
    "no red": matrix(
        *(0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216),
        *(-0.003882, -0.048116, 1.051998),
    ),
    "no green": matrix(
        *(0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413),
        *(-0.011820, 0.042940, 0.968881),
    ),
    "no blue": matrix(
        *(1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602),
        *(0.004733, 0.691367, 0.303900),
    ),
}
# Ottosson (2020): from linear RGB to cones, from their cube roots to OKLab.
TO_CONES = matrix(
    *(0.4122214708, 0.5363325363, 0.0514459929, 0.2119034982, 0.6806995451, 0.1073969566),
    *(0.0883024619, 0.2817188376, 0.6299787005),
)
TO_OKLAB = matrix(
    *(0.2104542553, 0.7936177850, -0.0040720468, 1.9779984951, -2.4285922050, 0.4505937099),
    *(0.0259040371, 0.7827717662, -0.8086757660),
)
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])


def scheme(name: str) -> dict[str, np.ndarray]:
    """The colours of the light or the dark page, in linear RGB."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    values = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", light))
    if name == "dark":
        values |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", dark))
    return {key: linear(value) for key, value in values.items()}


def linear(text: str) -> np.ndarray:
    digits = text[1:] if len(text) == 7 else "".join(2 * digit for digit in text[1:])
    shares = np.array(list(bytes.fromhex(digits))) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """WCAG's."""
    low, high = sorted((LUMINANCE @ one + 0.05, LUMINANCE @ other + 0.05))
    return high / low


def seen(color: np.ndarray, sight: str) -> np.ndarray:
    """A colour as some eyes see it, in OKLab."""
    return TO_OKLAB @ np.cbrt(TO_CONES @ np.clip(SIGHTS[sight] @ color, 0, 1))


@pytest.mark.parametrize("name", ["light", "dark"])
def test_colours_stand_out_and_text_can_be_read(name: str) -> None:
    found = scheme(name)
    for index in range(colours.COLOURS):
        assert contrast(found[f"c{index}"], found["lane"]) >= 3, index
        assert contrast(found[f"t{index}"], found[f"c{index}"]) >= 4.5, index
    for text in ("text", "soft", "link", "bad", "high"):
        for ground in ("back", "card"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    assert contrast(found["curve"], found["area"]) >= 3
    assert contrast(found["bad"], found["area"]) >= 3
    assert contrast(found["text"], found["area"]) >= 4.5


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("name", ["light", "dark"])
def test_colours_can_be_told_apart(name: str, sight: str) -> None:
    found = scheme(name)
    for one, other in combinations(range(colours.COLOURS), 2):
        apart = np.linalg.norm(seen(found[f"c{one}"], sight) - seen(found[f"c{other}"], sight))
        assert apart >= 0.095, (one, other)


def test_groups_with_the_same_colour_differ_in_texture() -> None:
    build = record(*(job(f"g{n}/u", float(n), n + 1.0 - n / 100) for n in range(24)))
    classes = colours.colours(figures.groups(build))
    assert len(set(classes.values())) == 24
    # The groups that took most have the plain colours.
    assert [classes[f"g{n}"] for n in range(9)] == [*(f"c{n}" for n in range(8)), "c0 stripes"]
    assert classes["g23"] == "c7 dots"
    text = report_html(build)
    assert {f'id="{name}"' in text for name in colours.TEXTURES if name} == {True}


def test_every_colour_of_the_page_is_defined_once_for_each_scheme() -> None:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    used = set(re.findall(r"var\(--([\w-]+)\)", STYLE)) - {"bar", "on"}
    for text in (light, dark):
        defined = re.findall(r"--([\w-]+):", text)
        assert len(defined) == len(set(defined))
        assert used <= set(defined)
