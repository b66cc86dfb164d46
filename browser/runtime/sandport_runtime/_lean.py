"""FastMCP without what a sandbox has no use for; a small call takes half the time.

- Spans: nothing in the sandbox can export them, yet FastMCP makes two a call, with all their attributes. Its own
  setting `propagation_only` leaves them out.
- Look-ups: FastMCP asks a server's providers in a task group, also where there is but one. In the sandbox all of them
  answer from memory, so asking one after the other gives the same, without the tasks.
- Middleware: a call passes through a chain of functions for each, with a validated message made for them. Where none of
  them has a say in calls, the call goes on at once.
- Visibility: each look-up asks the session's store for rules. Where no store was ever made there are none.
- Authorization: who calls is found out for each look-up, also of tools that ask nothing of anybody.
- Results: a value is written as JSON and parsed again, twice. Texts, and small objects of plain values, come out of
  that as they went in.

Invariant: what a server answers is the same with and without this; a FastMCP that has not the parts meant here is left
as it is.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutine
from typing import Any, Final

__all__ = ["gather", "install", "prepare_environment"]

LOOKUPS: Final = ("fastmcp.server.providers.aggregate", "fastmcp.server.providers.base")
"""Modules that ask several providers for tools, prompts and resources, by a function `gather` of FastMCP's own."""


def prepare_environment() -> None:
    """Settings that FastMCP reads when it is imported."""
    os.environ["FASTMCP_TELEMETRY_MODE"] = "propagation_only"


def install() -> None:
    """Put the shortcuts in place; call it when FastMCP may be imported. Idempotent."""
    for name in LOOKUPS:
        _replace(importlib.import_module(name), "gather", lambda _: gather)
    server = importlib.import_module("fastmcp.server.server")
    _replace(server.FastMCP, "call_tool", _direct)
    _replace(server, "_component_auth_allows", _allowed)
    _replace(importlib.import_module("fastmcp.server.transforms.visibility"), "get_visibility_rules", _rules)
    _replace(importlib.import_module("fastmcp.tools.base"), "_serialize_to_jsonable", _jsonable)


def _replace(owner: Any, name: str, shortcut: Callable[[Any], Any]) -> None:
    original = getattr(owner, name, None)
    if callable(original) and not hasattr(original, "sandport_original"):
        replacement = shortcut(original)
        replacement.sandport_original = original
        setattr(owner, name, replacement)


# -- calls --------------------------------------------------------------------------------------------------------


def _direct(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`FastMCP.call_tool` without the middleware's chain where it would do nothing."""
    from fastmcp.exceptions import ToolError
    from fastmcp.server.dependencies import _dispatching_tool_call
    from fastmcp.server.extensions import _extension_tool_call_scope
    from fastmcp.server.middleware.middleware import Middleware, mark_interior_dispatched

    from sandport.host import named_failure

    hooks = ("__call__", "_dispatch_handler", "on_message", "on_request", "on_call_tool")
    silent: dict[type, bool] = {}

    def has_no_say(middleware: Any) -> bool:
        kind = type(middleware)
        if kind not in silent:
            silent[kind] = all(getattr(kind, hook, None) is getattr(Middleware, hook) for hook in hooks)
        return silent[kind]

    def guard_of(server: Any) -> bool | None:
        """Whether the host's guard is all that has a say in calls; `None` where others have."""
        guarded = False
        for middleware in server.middleware:
            if getattr(middleware, "sandport", False):
                guarded = True
            elif not has_no_say(middleware):
                return None
        return guarded

    async def call_tool(
        self: Any, name: str, arguments: Any = None, *, version: Any = None, run_middleware: bool = True
    ) -> Any:
        if not run_middleware or self._extensions or (guarded := guard_of(self)) is None:
            return await original(self, name, arguments, version=version, run_middleware=run_middleware)
        with _dispatching_tool_call(), _extension_tool_call_scope(self):
            mark_interior_dispatched()
            try:
                result = await original(self, name, arguments, version=version, run_middleware=False)
            except ToolError as error:
                if not guarded or (text := named_failure(name, error)) is None:
                    raise
                raise ToolError(text) from error.__cause__
        return await self._rebind_prefab_tool_names(result)

    return call_tool


def _rules(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`get_visibility_rules` for servers whose session store nobody has used, so that there is none."""

    async def get_visibility_rules(context: Any) -> Any:
        if getattr(context.fastmcp, "_state_storage", original) is None:
            return []
        return await original(context)

    return get_visibility_rules


def _allowed(original: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
    """`_component_auth_allows` for what has no rule."""

    async def component_auth_allows(component: Any) -> bool:
        return component.auth is None or await original(component)

    return component_auth_allows


# -- results --------------------------------------------------------------------------------------------------------

_MAX_MEMBERS: Final = 32
_MAX_INT: Final = 2**63


class _NotPlainError(Exception):
    """A value that JSON may change, or that is too large to look through in Python."""


def _plain(value: Any, depth: int = 4) -> Any:
    """A copy of a value that JSON gives back as it is."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _NotPlainError from None
        return value
    if kind is bool or value is None or (kind is int and -_MAX_INT <= value < _MAX_INT):
        return value
    if kind is float and math.isfinite(value):
        return value
    if depth and (kind is dict or kind is list) and len(value) <= _MAX_MEMBERS:
        if kind is list:
            return [_plain(item, depth - 1) for item in value]
        if all(type(key) is str and key.isascii() for key in value):
            return {key: _plain(item, depth - 1) for key, item in value.items()}
    raise _NotPlainError


def _jsonable(original: Callable[..., Any]) -> Callable[..., Any]:
    """`_serialize_to_jsonable` for what it would give back as it is."""

    def serialize(data: Any, annotation: Any = Any) -> Any:
        if type(data) is str if annotation is str else annotation is Any or annotation is None:
            try:
                return _plain(data)
            except _NotPlainError:
                pass
        return original(data, annotation)

    return serialize


# -- look-ups -------------------------------------------------------------------------------------------------------


async def gather(awaitables: Iterable[Awaitable[Any]], *, return_exceptions: bool = False) -> list[Any]:
    """As `fastmcp.utilities.async_utils.gather`, in order: results in order, or the first exception."""
    results: list[Any] = []
    left = iter(awaitables)
    for awaitable in left:
        try:
            results.append(await awaitable)
        except Exception as error:
            if return_exceptions:
                results.append(error)
                continue
            for other in left:
                if iscoroutine(other):
                    other.close()
            raise
    return results
