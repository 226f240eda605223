"""What an integration raises when a person calls it. Plugins log it instead."""

from __future__ import annotations


class IntegrationError(RuntimeError):
    """An integration cannot be enabled; the message says why and what to do."""
