"""What the servers' entry points share: they enable, say one line, and never raise."""

from __future__ import annotations

import importlib
import logging

from fp4aot.integrations import settings


def activate(logger: logging.Logger) -> bool:
    """Enable the FlashInfer integration in a server's process.

    Parameters
    ----------
    logger
        One that the server shows.

    Returns
    -------
    bool
        Whether calls are routed now. Whatever goes wrong is logged, and the server starts without.
    """
    try:
        if settings.is_disabled():
            logger.info("fp4aot: %s is set, FlashInfer is left as it is", settings.DISABLE)
            return False
        flashinfer = importlib.import_module("fp4aot.integrations.flashinfer")
        report = flashinfer.enable()
    except Exception as error:
        reason = f"{error}" if type(error).__name__ == "IntegrationError" else f"{error!r}"
        logger.warning("fp4aot: not active, FlashInfer is left as it is: %s", reason)
        return False
    # What is said later, once FlashInfer is imported or has been tuned, goes the same way.
    ours = logging.getLogger("fp4aot")
    ours.parent = logger
    # Loggers remember which levels are shown, until one is set.
    ours.setLevel(ours.level)
    logger.info("fp4aot: %s", report.summary())
    return bool(report.active)
