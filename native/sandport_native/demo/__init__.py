"""The demo agent: a script that plans and calls page tools for a handful of plain requests. It is no LLM and says so.

Invariant: the same request with the same tools and the same tool results always gives the same calls and answer.
"""

from sandport_native.demo.planner import Answer, Call, Done, Tool, plan

__all__ = ["Answer", "Call", "Done", "Tool", "plan"]
