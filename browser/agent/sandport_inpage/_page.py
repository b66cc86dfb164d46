"""What the page does for its agent: keep sessions, and carry requests to the one endpoint.

The worker has no storage and no network (its policy is `connect-src 'none'`). It says what it wants on the port, and
the page does it within its own rules: a request is a path below the address that the person typed, and the page puts
the key on it.

Invariants: every question to the page gets one answer or fails when the page says so; nothing here names an address or
knows a key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httpx2

from sandport_inpage._store import Head, StoreError

__all__ = ["Page", "PageStore", "PageTransport"]

Emit = Callable[[dict[str, Any]], object]


class Page:
    """Numbers what is asked of the page, and hands out what it answers.

    Args:
        emit: sends a control object to the page.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._next = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._responses: dict[int, _Response] = {}

    async def ask(self, what: str, **members: Any) -> Any:
        """Ask the page to do something; its value.

        Raises:
            StoreError: the page could not; the text says why.
        """
        number = self._number()
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._emit({"event": "ask", "ask": number, "what": what, **members})
            return await future
        finally:
            self._asked.pop(number, None)

    def answered(self, ask: int, ok: bool, value: Any = None, message: str = "") -> None:
        """The page answered a question; one that nobody waits for any more is dropped."""
        future = self._asked.get(ask)
        if future is None or future.done():
            return
        if ok:
            future.set_result(value)
        else:
            future.set_exception(StoreError(message or "the page gave no reason"))

    def request(self, method: str, path: str, headers: dict[str, str], body: str) -> _Response:
        """Start a request to the endpoint."""
        number = self._number()
        response = self._responses[number] = _Response(lambda: self._drop(number))
        self._emit(
            {
                "event": "http",
                "http": number,
                "method": method,
                "path": path,
                "headers": headers,
                "body": body,
            }
        )
        return response

    def arrived(self, http: int, part: dict[str, Any]) -> None:
        """A part of a response came: its head, some text, its end, or why there is none."""
        response = self._responses.get(http)
        if response is None:
            return
        if part["kind"] in ("end", "error"):
            del self._responses[http]
        response.feed(part)

    def _drop(self, number: int) -> None:
        if self._responses.pop(number, None) is not None:
            self._emit({"event": "httpStop", "http": number})

    def _number(self) -> int:
        self._next += 1
        return self._next


class _Response:
    """A response that comes in parts."""

    def __init__(self, drop: Callable[[], None]) -> None:
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._drop = drop

    def feed(self, part: dict[str, Any]) -> None:
        self._parts.put_nowait(part)

    async def part(self) -> dict[str, Any]:
        part = await self._parts.get()
        if part["kind"] == "error":
            raise httpx2.ConnectError(str(part.get("message", "")))
        return part

    def drop(self) -> None:
        """Nobody reads on: the page stops the request. After its end it does nothing."""
        self._drop()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: _Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._response.part())["kind"] != "end":
            yield str(part["text"]).encode()

    async def aclose(self) -> None:
        self._response.drop()


class PageTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport whose requests the page makes."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Of its headers only those that describe the body go along."""
        body = (await request.aread()).decode()
        wanted = ("accept", "content-type")
        headers = {name: value for name, value in request.headers.items() if name.lower() in wanted}
        response = self._page.request(request.method, request.url.raw_path.decode(), headers, body)
        try:
            head = await response.part()
        except BaseException:
            response.drop()
            raise
        return httpx2.Response(
            int(head["status"]),
            headers=cast("dict[str, str]", head["headers"]),
            stream=_Body(response),
            request=request,
        )


class PageStore:
    """A store that the page keeps; it reads heads, and never a session's text."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def list(self) -> list[Head]:
        """See `SessionStore.list`."""
        heads: list[Head] = json.loads(await self._page.ask("store.list"))
        return heads

    async def read(self, session_id: str) -> str | None:
        """See `SessionStore.read`."""
        return cast("str | None", await self._page.ask("store.read", key=session_id))

    async def write(self, head: Head, text: str) -> None:
        """See `SessionStore.write`."""
        await self._page.ask("store.write", key=head["sessionId"], head=head, text=text)

    async def delete(self, session_id: str) -> None:
        """See `SessionStore.delete`."""
        await self._page.ask("store.delete", key=session_id)
