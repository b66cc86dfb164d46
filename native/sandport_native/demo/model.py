"""The script as agentpool's model. Imported only where agentpool is installed."""

from __future__ import annotations

from typing import Final

from pydantic_ai.messages import ToolReturnPart

from sandport_demo.model import function_model

__all__ = ["MODEL"]

FAILED: Final = "Tool error: "
"""How agentpool begins the result of a call that failed."""


def _failure(part: ToolReturnPart) -> str | None:
    content = part.content
    return content.removeprefix(FAILED) if isinstance(content, str) and content.startswith(FAILED) else None


MODEL = function_model(_failure)
"""The demo model; agentpool configs can name it: `model: {type: import, model: sandport_native.demo.model.MODEL}`."""
