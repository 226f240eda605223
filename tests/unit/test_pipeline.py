"""Folders, and the object cache's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot import pipeline
from aot.errors import PlanError


@pytest.fixture(autouse=True)
def _no_cache_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCCACHE_DIR", "SCCACHE_IDLE_TIMEOUT", "SCCACHE_SERVER_UDS"):
        monkeypatch.delenv(name, raising=False)


def test_the_cache_is_inside_the_build_folder_with_a_server_of_its_own(tmp_path: Path) -> None:
    variables = pipeline.object_cache_variables(tmp_path / "cache")
    assert variables["SCCACHE_DIR"] == str(tmp_path / "cache")
    assert variables["SCCACHE_SERVER_UDS"].startswith(str(tmp_path))


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCCACHE_DIR", "/elsewhere")
    assert "SCCACHE_DIR" not in pipeline.object_cache_variables(tmp_path / "cache")


def test_a_socket_path_that_is_too_long_for_the_system_is_not_used(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 110)
    assert "SCCACHE_SERVER_UDS" not in pipeline.object_cache_variables(deep)


def test_a_build_folder_with_a_blank_is_refused_before_anything_is_installed(
    tmp_path: Path,
) -> None:
    with pytest.raises(PlanError, match="separates its flags by blanks"):
        pipeline.prepare("quick", tmp_path / "my builds")
    assert not list(tmp_path.iterdir())
