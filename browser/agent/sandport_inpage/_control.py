"""The control of a running in-page agent: what the page asks for beside the ACP channel.

Invariants: every request `{op, seq, ...}` gets exactly one `{seq, ok, ...}`; one without a seq gets none. One channel
is served at a time; the texts that follow an `open` belong to the channel that it opened.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import httpx2
from sandport_runtime._channel import PortChannel

from sandport_inpage._agent import serve_agent
from sandport_inpage._models import ModelChoice, demo_model, endpoint_model
from sandport_inpage._page import Page, PageStore, PageTransport
from sandport_inpage._place import PLACES, Place

if TYPE_CHECKING:
    from sandport_runtime._loop import SandboxLoop

__all__ = ["Control"]

CONNECT_TIMEOUT: Final = 600.0
"""Seconds without a sign from the endpoint: a local model may load for minutes before its first word."""


class Control:
    """Serves the agent and answers control requests.

    Args:
        post: puts an ACP text on the port.
        event: sends a control object to the page.
        loop: the loop that `receive` and `control` drive.
        report: takes a line for the page's log.
    """

    def __init__(
        self,
        post: Callable[[str], object],
        event: Callable[[dict[str, Any]], object],
        *,
        loop: SandboxLoop,
        report: Callable[[str], object],
    ) -> None:
        self._post = post
        self._event = event
        self._loop = loop
        self._report = report
        self._page = Page(event)
        self._store = PageStore(self._page)
        self._model = demo_model()
        self._channel: PortChannel | None = None
        self._serving: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Task[None]] = set()
        self.task: asyncio.Task[None] | None = None
        self._ops: dict[str, Callable[..., Awaitable[Any]]] = {
            "open": self._open,
            "model": self._choose,
            "leave": self._leave,
        }

    async def run(self, boot: Mapping[str, Any]) -> None:
        """Say `ready`; the rest happens when the page asks for it."""
        self._event({"event": "ready", "servers": [], "boot": boot})

    # -- called by the worker's JavaScript

    def receive(self, text: str) -> None:
        """An ACP text came from the page."""
        if self._channel is not None:
            self._channel.feed(text)
        self._loop.run_ready()

    def receive_utf8(self, utf8: Any) -> None:
        """An ACP text came from the page as an ArrayBuffer of UTF-8, which Python takes over sooner than a string."""
        self.receive(utf8.to_bytes().decode())

    def control(self, text: str, data: Any = None) -> None:
        """A control object came from the page, as JSON."""
        request = json.loads(text)
        match request.get("op"):
            case "answer":
                self._page.answered(request["ask"], request["ok"], request.get("value"), request.get("message", ""))
            case "http":
                self._page.arrived(request["http"], request)
            case "close":
                if self._channel is not None:
                    self._channel.close()
            case _:
                if request.get("op") == "open":
                    # At once, not in a task: the next text on the port is the new channel's.
                    self._switch()
                task = self._loop.create_task(self._answer(request))
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
        self._loop.run_ready()

    def _switch(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = PortChannel(self._post)

    # -- requests

    async def _answer(self, request: dict[str, Any]) -> None:
        seq = request.pop("seq", None)
        op = self._ops.get(str(request.pop("op", None)))
        try:
            if op is None:
                raise ValueError("unknown operation")
            value = await op(**request)
        except Exception as error:
            answer: dict[str, Any] = {"ok": False, "error": {"message": f"{type(error).__name__}: {error}"}}
        else:
            answer = {"ok": True, "value": value}
        if seq is not None:
            self._event({"seq": seq, **answer})

    async def _open(self, place: str = "page") -> None:
        """Serve a new channel, as the agent of a `PLACES`; what the one before was doing ends first."""
        channel, before = self._channel, self._serving
        assert channel is not None
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        self._serving = self._loop.create_task(self._serve(channel, PLACES[place]), name="agent")

    async def _leave(self) -> None:
        """End the channel; done when its turns have stopped and their sessions are kept."""
        if self._channel is not None:
            self._channel.close()
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)

    async def _serve(self, channel: PortChannel, place: Place) -> None:
        try:
            await serve_agent(channel, self._store, lambda: self._model, place)
        except Exception as error:
            self._report(f"the agent's connection failed: {type(error).__name__}: {error}\n")
            channel.close()

    async def _choose(self, kind: str, name: str = "") -> None:
        """Take another model, from the next turn on: `demo`, or the endpoint's model `name`."""
        self._model = self._endpoint(name) if kind == "endpoint" else demo_model()

    def _endpoint(self, name: str) -> ModelChoice:
        if not name:
            raise ValueError("the endpoint's model needs a name")
        transport = PageTransport(self._page)
        return endpoint_model(name, lambda: httpx2.AsyncClient(transport=transport, timeout=CONNECT_TIMEOUT))
