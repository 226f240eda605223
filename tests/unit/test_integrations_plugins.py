"""The servers' entry points: one line, and never an exception."""

from __future__ import annotations

import functools
import logging
import types

import pytest

from fp4aot.integrations import errors, plugin, report, sglang, vllm
from fp4aot.integrations import flashinfer as integration

SERVERS = [(sglang, "sglang.srt.plugins.fp4aot"), (vllm, "vllm.plugins.fp4aot")]


@pytest.fixture
def enable(monkeypatch):
    """Decide what `enable` does."""

    def decide(result: report.Report | BaseException) -> None:
        def stand_in() -> report.Report:
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr(integration, "enable", stand_in)

    monkeypatch.delenv("FP4AOT_DISABLE", raising=False)
    return decide


@pytest.mark.parametrize(("server", "logger"), SERVERS)
def test_it_says_one_line(server, logger, enable, caplog):
    enable(report.Report("0.7.2", "0.7.2", active=True, replaced=("mm_fp4", "fp4_quantize")))
    with caplog.at_level(logging.INFO):
        assert server.activate() is None
    (record,) = caplog.records
    assert record.name == logger
    assert record.levelno == logging.INFO
    assert record.getMessage() == "fp4aot: FlashInfer 0.7.2: 2 functions replaced"


@pytest.mark.parametrize(("server", "logger"), SERVERS)
def test_what_is_said_later_goes_to_the_servers_log(server, logger, enable, monkeypatch, caplog):
    """vLLM shows what its own loggers say, and no other's."""
    monkeypatch.setattr(logging.getLogger("fp4aot"), "parent", logging.getLogger())
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    shown = logging.getLogger(logger.partition(".")[0])
    monkeypatch.setattr(shown, "handlers", [handler])
    monkeypatch.setattr(shown, "propagate", False)
    caplog.set_level(logging.INFO, shown.name)
    later = logging.getLogger("fp4aot.integrations.flashinfer")
    assert not later.isEnabledFor(logging.INFO)
    enable(report.Report("0.7.2", "0.7.2", active=True, replaced=("mm_fp4",)))
    server.activate()
    later.info("fp4aot: 7 rows")
    assert [record.getMessage() for record in records][1:] == ["fp4aot: 7 rows"]


@pytest.mark.parametrize(("server", "logger"), SERVERS)
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.IntegrationError("FlashInfer is not installed"), "FlashInfer is not installed"),
        (AttributeError("something new"), "AttributeError('something new')"),
        (ImportError("cannot load"), "ImportError('cannot load')"),
    ],
)
def test_what_goes_wrong_is_one_line_too(server, logger, error, text, enable, caplog):
    enable(error)
    with caplog.at_level(logging.INFO):
        server.activate()
    (record,) = caplog.records
    assert record.name == logger
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"fp4aot: not active, FlashInfer is left as it is: {text}"


@pytest.mark.parametrize(("server", "logger"), SERVERS)
def test_it_can_be_turned_off(server, logger, enable, caplog, monkeypatch):
    enable(AssertionError("enabled"))
    monkeypatch.setenv("FP4AOT_DISABLE", "1")
    with caplog.at_level(logging.INFO):
        server.activate()
    (record,) = caplog.records
    assert record.getMessage() == "fp4aot: FP4AOT_DISABLE is set, FlashInfer is left as it is"
    assert plugin.activate(logging.getLogger(logger)) is False


def lazy(module: types.ModuleType, name: str):
    """vLLM's `_lazy_import_wrapper`, without the question whether FlashInfer is there."""

    @functools.cache
    def _get_impl():
        return getattr(module, name, None)

    def wrapper(*args, **kwargs):
        return _get_impl()(*args, **kwargs)

    return wrapper


def test_vllms_wrappers_look_again():
    flashinfer = types.ModuleType("flashinfer_for_this_test")
    flashinfer.fp4_quantize = lambda: "theirs"
    flashinfer.mm_fp4 = lambda: "theirs"
    wrappers = types.ModuleType("wrappers")
    wrappers.quantize = lazy(flashinfer, "fp4_quantize")
    wrappers.multiply = lazy(flashinfer, "mm_fp4")
    wrappers.something_else = lazy
    wrappers.number = 1
    assert wrappers.quantize() == "theirs"
    flashinfer.fp4_quantize = lambda: "ours"
    assert wrappers.quantize() == "theirs"
    assert vllm.forget(wrappers) == 2
    assert wrappers.quantize() == "ours"
    assert wrappers.multiply() == "theirs"
    assert vllm.forget(None) == 0
