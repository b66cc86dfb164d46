"""The demo agent's script: it plans and calls page tools for a handful of plain requests. It is no LLM and says so.

Pure Python, for the native demo agent and for the agent in the page; only `model`, which is not imported here, needs
pydantic-ai. Invariant: the same request with the same tools and the same results always gives the same calls and the
same answer.
"""

from __future__ import annotations

from sandport_demo.planner import HELP, NOTE, Answer, Call, Done, Step, Tool, plan

__all__ = ["HELP", "NOTE", "Answer", "Call", "Done", "Step", "Tool", "plan"]
