"""Which FlashInfer can be routed to this wheel: compared by release segments, never by prefix."""

from __future__ import annotations

from dataclasses import dataclass

from fp4aot._library import is_same_release, release
from fp4aot.integrations import settings

TESTED = ("0.7.2", "0.7.4")
"""Releases that the functions were run with."""

OLDEST = (0, 6, 8)
END = (0, 8)
"""Releases from the oldest to before the end have functions whose parameters are known."""


@dataclass(frozen=True)
class Verdict:
    """Whether a FlashInfer can be routed.

    Parameters
    ----------
    accepted
        Whether it can.
    message
        One line naming both versions; empty when they are the same release.
    """

    accepted: bool
    message: str


def judge(found: str, wheel: str, check: str) -> Verdict:
    """Compare the installed FlashInfer with the one that the wheel was built from.

    Parameters
    ----------
    found, wheel
        Versions. Local, pre- and post-release parts do not count: 0.7.2+cu130 and 0.7.2.post1 are
        0.7.2; 0.7.20 is not.
    check
        `Settings.version_check`.
    """
    if is_same_release(found, wheel):
        return Verdict(accepted=True, message="")
    both = f"FlashInfer {found} is installed and this wheel holds the kernels of {wheel}"
    if check == "0":
        return Verdict(True, f"{both}; {settings.VERSION_CHECK}=0 accepts that")
    remedy = f"install flashinfer-python=={wheel}, or another fp4aot wheel"
    if check == "strict":
        return Verdict(False, f"{both}, and {settings.VERSION_CHECK}=strict; {remedy}")
    if OLDEST <= release(found) < END:
        tested = any(is_same_release(found, version) for version in TESTED)
        return Verdict(
            True,
            f"{both}; results are those of {wheel}"
            + ("" if tested else f", and only {' and '.join(TESTED)} are tested"),
        )
    oldest = ".".join(map(str, OLDEST))
    end = ".".join(map(str, END))
    return Verdict(
        False,
        f"{both}; its functions are not known, from {oldest} to before {end} they are; {remedy}, "
        f"or set {settings.VERSION_CHECK}=0 to try",
    )
