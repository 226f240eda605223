"""NVFP4 recipes: their fields, their codes, and FlashInfer's own class in their place."""

from __future__ import annotations

import dataclasses
import pickle
from enum import IntEnum
from itertools import product

import pytest

from fp4aot import _recipes
from fp4aot._recipes import NVFP44Over6Config, NVFP44Over6ErrMode

# (e4m3_max, err_mode, err_use_fast_math) and the code, from `nvfp4Recipe.h` in FlashInfer.
CODES = {
    (448, 0, False): 1,
    (256, 0, False): 3,
    (448, 1, False): 5,
    (256, 1, False): 7,
    (448, 0, True): 17,
    (256, 0, True): 19,
    (448, 1, True): 21,
    (256, 1, True): 23,
}


@pytest.mark.parametrize(("fields", "code"), CODES.items())
def test_codes_are_flashinfers(fields, code):
    e4m3_max, err_mode, err_use_fast_math = fields
    config = NVFP44Over6Config(e4m3_max, NVFP44Over6ErrMode(err_mode), err_use_fast_math)
    assert _recipes.nvfp4_4over6_code(config) == code
    assert _recipes.nvfp4_4over6_from_code(code) == config
    assert _recipes.nvfp4_e4m3_max(config) == float(e4m3_max)


def test_the_standard_recipe():
    assert _recipes.nvfp4_4over6_code(None) == 0
    assert _recipes.nvfp4_4over6_from_code(0) is None
    assert _recipes.nvfp4_e4m3_max() == 448.0


@pytest.mark.parametrize("code", set(range(-2, 70)) - set(CODES.values()) - {0})
def test_other_codes_are_refused(code):
    assert not _recipes.is_recipe_code(code)
    with pytest.raises(ValueError, match=f"code={code};"):
        _recipes.nvfp4_4over6_from_code(code)


def test_defaults_and_names():
    assert NVFP44Over6Config() == NVFP44Over6Config(448, NVFP44Over6ErrMode.MAE, False)
    for name in ("MSE", "mse"):
        config = NVFP44Over6Config(err_mode=name)
        assert config.err_mode is NVFP44Over6ErrMode.MSE
    assert NVFP44Over6Config(err_mode=1).err_mode is NVFP44Over6ErrMode.MSE


def test_a_recipe_is_a_value():
    config = NVFP44Over6Config(256, "MSE", True)
    assert pickle.loads(pickle.dumps(config)) == config
    assert len({config, NVFP44Over6Config(256, "MSE", True), NVFP44Over6Config()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.e4m3_max = 448


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"e4m3_max": 300}, "NVFP44Over6Config: e4m3_max=300; pass 448 or 256"),
        ({"err_mode": "MAX"}, "err_mode='MAX'; pass NVFP44Over6ErrMode"),
        ({"err_mode": 2}, "err_mode=2"),
        ({"err_use_fast_math": "no"}, "err_use_fast_math='no'; pass True or False"),
    ],
)
def test_other_fields_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        NVFP44Over6Config(**fields)


class TheirErrMode(IntEnum):
    MAE = 0
    MSE = 1


@dataclasses.dataclass(frozen=True)
class TheirConfig:
    """FlashInfer's class, as far as it matters."""

    e4m3_max: int = 448
    err_mode: TheirErrMode = TheirErrMode.MAE
    err_use_fast_math: bool = False


def test_another_class_with_the_same_fields_serves():
    for e4m3_max, mode, fast in product((448, 256), (0, 1), (False, True)):
        theirs = TheirConfig(e4m3_max, TheirErrMode(mode), fast)
        assert _recipes.nvfp4_4over6_code(theirs) == CODES[e4m3_max, mode, fast]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"e4m3_max": 384}, "fp4aot.some_function: e4m3_max=384"),
        ({"err_mode": 3}, "fp4aot.some_function: err_mode=3"),
        ({"err_use_fast_math": 2}, "fp4aot.some_function: err_use_fast_math=2"),
    ],
)
def test_fields_of_another_class_are_checked(fields, words):
    with pytest.raises(ValueError, match=words):
        _recipes.recipe_code("some_function", "nvfp4_4over6", TheirConfig(**fields))


@pytest.mark.parametrize("value", ["MAE", 1, True, object(), NVFP44Over6ErrMode.MSE])
def test_what_is_no_recipe_is_refused(value):
    with pytest.raises(TypeError, match=r"fp4aot\.some_function: nvfp4_4over6 is of type .*; pass"):
        _recipes.recipe_code("some_function", "nvfp4_4over6", value)
    with pytest.raises(TypeError, match="nvfp4_4over6_code: config is of type"):
        _recipes.nvfp4_4over6_code(value)


def test_the_environment_does_not_matter(monkeypatch):
    monkeypatch.setenv("FLASHINFER_NVFP4_4OVER6", "1")
    monkeypatch.setenv("FLASHINFER_NVFP4_4OVER6_E4M3_USE_256", "1")
    assert _recipes.nvfp4_4over6_code(None) == 0
    assert _recipes.nvfp4_4over6_code(NVFP44Over6Config()) == 1
