"""What a build tells: a line of JSON for each event, lines for a log, a picture for a terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from aot.compile import display, events
from aot.compile.display import line_of, picture
from aot.compile.events import Event, json_lines
from aot.compile.record import BuildRecord, JobRecord
from aot.errors import BuildError

BEGAN = events.Began(0.5, 40, 3, 2, 16_000, 184.0)
STARTED = events.Started(1.0, "m/[a]", 0, 1, 10.0, 700)
FINISHED = events.Finished(66.0, "m/[a]", "compiled", 65.0, 1147, 1, 37, 125.0)
CACHED = events.Finished(66.0, "m/b", "cache", 2.0, None, 2, 37, 60.0)
RETRIED = events.Retried(70.0, "m/c", "out of memory")
FAILED = events.Failed(80.0, "m/c", "the compiler was killed")
DISCARDED = events.Discarded(0.1, "m/d")
WORKING = events.Working(30.0, (("m/[a]", 29.0, 60.0), ("m/b", 95.0, 60.0)), 2345, 1, 37, 125.0)
EVERY = (BEGAN, STARTED, FINISHED, CACHED, RETRIED, FAILED, DISCARDED, WORKING)


# For machines


def test_every_kind_of_event_is_known_here() -> None:
    assert {type(event) for event in EVERY} == set(Event.__subclasses__())
    names = [kind.name for kind in Event.__subclasses__()]
    assert len(set(names)) == len(names)


def test_each_event_is_one_line_of_json() -> None:
    stream = io.StringIO()
    listen = json_lines(stream)
    for event in EVERY:
        listen(event)
    lines = stream.getvalue().splitlines()
    assert len(lines) == len(EVERY)
    for line, event in zip(lines, EVERY, strict=True):
        data = json.loads(line)
        assert data["event"] == event.name
        assert data["seconds"] == event.seconds
        assert set(data) == {"event", *vars(event)}
    assert json.loads(lines[2]) == {
        "event": "finished",
        "seconds": 66.0,
        "job": "m/[a]",
        "origin": "compiled",
        "job_seconds": 65.0,
        "peak_megabytes": 1147,
        "done": 1,
        "total": 37,
        "seconds_left": 125.0,
    }
    assert json.loads(lines[-1])["running"][0] == ["m/[a]", 29.0, 60.0]


def test_a_line_is_there_at_once() -> None:
    """Whoever follows a build reads a pipe."""

    class Pipe(io.StringIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    pipe = Pipe()
    json_lines(pipe)(BEGAN)
    assert pipe.flushed == 1


def test_nobody_has_to_listen() -> None:
    for event in EVERY:
        events.nobody(event)


# For people


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (BEGAN, "40 objects, 3 are there already; 2 compilers at once, 16000 MB, about 3:04"),
        (
            events.Began(0.0, 40, 0, 2, 16_000, 184.0),
            "40 objects; 2 compilers at once, 16000 MB, about 3:04",
        ),
        (events.Began(0.0, 40, 40, 2, 16_000, 0.0), "all 40 objects are there already"),
        (STARTED, None),
        (FINISHED, "[1/37] m/[a] in 1:05, 1147 MB (about 2:05 left)"),
        (CACHED, "[2/37] m/b from the cache in 0:02 (about 1:00 left)"),
        (RETRIED, "m/c: out of memory; once more, with nothing beside it"),
        (FAILED, "m/c: the compiler was killed; what runs is finished, nothing new is started"),
        (DISCARDED, "m/d: the object that was kept is damaged; it is compiled anew"),
        (WORKING, None),
    ],
)
def test_lines(event: Event, line: str | None) -> None:
    assert line_of(event) == line


def shown(told: list[Event], *, terminal: bool, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal)
    with display.shown(console) as listen:
        for event in told:
            listen(event)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_log_gets_a_line_an_object_however_long_it_is() -> None:
    lines = shown([BEGAN, STARTED, FINISHED, CACHED], terminal=False, width=20).splitlines()
    assert lines == [line_of(event) for event in (BEGAN, FINISHED, CACHED)]


def working(seconds: float) -> events.Working:
    return events.Working(seconds, WORKING.running, 2345, 1, 37, 125.0)


def test_a_log_is_told_what_runs_once_a_minute() -> None:
    lines = shown([BEGAN, *map(working, range(1, 200))], terminal=False).splitlines()
    assert len(lines) == 1 + 3
    assert lines[1] == "    2 running, 2345 MB, about 2:05 left: m/[a] (0:29), m/b (1:35)"


def test_a_log_that_has_just_said_something_is_not_told_what_runs() -> None:
    told = [BEGAN, working(59), FINISHED, working(100), working(125), working(127)]
    lines = shown(told, terminal=False).splitlines()
    # A minute after the object of second 66.
    assert [line.startswith("    ") for line in lines] == [False, False, True]


def printed(event: events.Working, limit: int = 16_000) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(picture(event, limit))
    return captured.get()


def test_a_picture_has_what_is_done_what_runs_and_what_is_left() -> None:
    text = printed(WORKING)
    for part in ("1/37 objects", "2.3 of 16.0 GB", "about 2:05 left"):
        assert part in text
    for part in ("0:29 of about 1:00", "1:35 of about 1:00", "m/[a]", "m/b"):
        assert part in text


def test_a_picture_of_nothing_and_of_much() -> None:
    assert "0/0 objects" in printed(events.Working(0.0, (), 0, 0, 0, 0.0))
    running = tuple((f"m/{number}", 1.0, 0.0) for number in range(30))
    text = printed(events.Working(1.0, running, 0, 0, 30, 1.0))
    assert "and 18 more" in text
    assert "m/11" in text
    assert "m/12" not in text


def test_a_terminal_gets_the_picture_with_the_limit_and_the_lines() -> None:
    text = shown([BEGAN, STARTED, WORKING, FINISHED], terminal=True)
    assert "2.3 of 16.0 GB" in text
    assert "m/[a] in 1:05, 1147 MB" in text


def test_a_terminal_is_restored_when_a_build_fails() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)

    def build() -> None:
        with display.shown(console) as listen:
            listen(WORKING)
            raise BuildError("m/c: out of memory")

    with pytest.raises(BuildError):
        build()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    hidden, visible = "\x1b[?25l", "\x1b[?25h"
    assert text.rindex(visible) > text.rindex(hidden)


# The record of a build


def test_a_record_survives_being_written_down() -> None:
    jobs = (
        JobRecord("m/a", "compiled", 0, 1.0, 66.0, 700, 60.0, 1147, 2),
        JobRecord("operators/b", None, 1, 2.0, 3.0, 600, 5.0, None, 1, "out of memory"),
        JobRecord("m/c", "kept", None, None, None, 700, 60.0),
    )
    record = BuildRecord(
        *("quick", "0" * 64, {"CUDA": "13.0.88"}, "x86_64", "2026-01-01T00:00:00+00:00"),
        *(70.0, 2, 16_000, jobs, ((0.1, 10), (1.2, 2345))),
        cache_hits=1,
        cache_misses=2,
    )
    assert BuildRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert record.peak_megabytes == 2345
    assert [job.group for job in jobs] == ["m", "operators", "m"]
    assert [job.seconds for job in jobs] == [65.0, 1.0, None]


def test_a_build_that_ran_nothing_has_no_peak() -> None:
    record = BuildRecord("quick", "", {}, "x86_64", "", 0.0, 2, 16_000, ())
    assert record.peak_megabytes == 0
