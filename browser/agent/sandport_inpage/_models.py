"""The models: a script that needs no key, and any endpoint that speaks OpenAI's chat API.

Invariant: nothing here knows a key. The page adds it to the requests on their way out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models import Model

from sandport_demo.model import function_model

if TYPE_CHECKING:
    import httpx2

__all__ = ["LOCAL_BASE", "ModelChoice", "demo_model", "endpoint_model"]

LOCAL_BASE: Final = "https://endpoint.invalid/"
"""Stands for the endpoint's address, which only the page knows; requests leave as paths below it."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model and how to use it."""

    model: Model
    name: str
    """Shown to the person."""
    scripted: bool = False
    """It is no language model: instructions and the plan tool are not for it."""


def demo_model() -> ModelChoice:
    """The demo script: deterministic, needs nothing, and says that it is a script."""
    return ModelChoice(function_model(_failure), "demo script", scripted=True)


def _failure(part: ToolReturnPart) -> str | None:
    return None if part.outcome == "success" else part.model_response_str(wrap_if_error=False)


def endpoint_model(name: str, client: Callable[[], httpx2.AsyncClient]) -> ModelChoice:
    """A model behind an OpenAI-compatible endpoint.

    Args:
        name: the model's name there.
        client: makes the HTTP client, whose requests to paths below `LOCAL_BASE` reach the endpoint.
    """
    # Imported when it is wanted: it takes a second, and the demo does without.
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    openai = AsyncOpenAI(
        base_url=LOCAL_BASE,
        # The client insists on one; the page takes this header off and puts the real one on, if there is one.
        api_key="none",
        http_client=client(),
        max_retries=1,
    )
    provider = OpenAICompatibleProvider("endpoint", openai_client=openai)
    return ModelChoice(OpenAIChatModel(name, provider=provider), name)
