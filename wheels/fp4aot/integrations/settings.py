"""What the environment says about the integrations. Read once, when one is enabled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fp4aot._recipes import NVFP44Over6Config, NVFP44Over6ErrMode
from fp4aot.integrations.errors import IntegrationError

DISABLE = "FP4AOT_DISABLE"
VERSION_CHECK = "FP4AOT_FLASHINFER_VERSION_CHECK"
BACKENDS = "FP4AOT_FLASHINFER_BACKENDS"

OWN_BACKENDS = ("auto", "cuda", "cutlass")
"""Backends of FlashInfer whose kernels the wheel holds; "auto" leaves the choice."""

OTHER_BACKENDS = ("cute-dsl", "cudnn", "b12x")
"""Backends that take and give the same layouts, so that a user may have ours instead."""

_VERSION_CHECKS = ("", "0", "1", "strict")
_OFF = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    Parameters
    ----------
    disabled
        ``FP4AOT_DISABLE``: replace nothing.
    version_check
        ``FP4AOT_FLASHINFER_VERSION_CHECK``: "0" accepts any FlashInfer, "strict" only the release
        that the wheel was built from; "1", the default, those with the known functions.
    backends
        The `backend` arguments whose calls go to the wheel. ``FP4AOT_FLASHINFER_BACKENDS`` adds to
        them.
    recipe
        FlashInfer's ``FLASHINFER_NVFP4_4OVER6*`` variables: what a call computes that does not
        pass a recipe. None is the standard recipe.
    """

    disabled: bool
    version_check: str
    backends: tuple[str, ...]
    recipe: NVFP44Over6Config | None

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables.

        Raises
        ------
        IntegrationError
            One of them has a value that means nothing.
        """
        return cls(
            disabled=is_disabled(environment),
            version_check=_version_check(environment.get(VERSION_CHECK, "")),
            backends=_backends(environment.get(BACKENDS, "")),
            recipe=_recipe(environment),
        )


def is_disabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether ``FP4AOT_DISABLE`` turns the integrations off."""
    return environment.get(DISABLE, "").strip().lower() not in _OFF


def _version_check(value: str) -> str:
    if value not in _VERSION_CHECKS:
        raise IntegrationError(f"{VERSION_CHECK}={value!r}; set it to 0, 1 or strict, or unset it")
    return value or "1"


def _backends(value: str) -> tuple[str, ...]:
    more = tuple(name for part in value.split(",") if (name := part.strip()))
    unknown = [name for name in more if name not in OWN_BACKENDS + OTHER_BACKENDS]
    if unknown:
        raise IntegrationError(
            f"{BACKENDS}={value!r}: {', '.join(unknown)} cannot be replaced; name some of "
            f"{', '.join(OTHER_BACKENDS)}, separated by commas, or unset it"
        )
    return OWN_BACKENDS + tuple(name for name in more if name not in OWN_BACKENDS)


def _recipe(environment: Mapping[str, str]) -> NVFP44Over6Config | None:
    """Read the recipe as FlashInfer's `current_nvfp4_4over6_config` does."""
    prefix = "FLASHINFER_NVFP4_4OVER6"
    if environment.get(prefix) != "1":
        return None
    mode = environment.get(f"{prefix}_ERR_MODE", "MAE").upper()
    if mode not in NVFP44Over6ErrMode.__members__:
        raise IntegrationError(f"{prefix}_ERR_MODE={mode!r}; set it to MAE or MSE, or unset it")
    return NVFP44Over6Config(
        e4m3_max=256 if environment.get(f"{prefix}_E4M3_USE_256") == "1" else 448,
        err_mode=NVFP44Over6ErrMode[mode],
        err_use_fast_math=environment.get(f"{prefix}_ERR_USE_FAST_MATH") == "1",
    )
