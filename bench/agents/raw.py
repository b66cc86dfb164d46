"""An ACP agent of plain JSON lines that times calls of a page's tool, and of the same tool over Streamable HTTP.

It uses no library on either side, so that what is measured is the path and not a client. Both are timed in this one
process, so that they share its scheduling and its warm-up. Orders come as JSON lines over the Unix socket that
`SANDPORT_BENCH_CONTROL` names; each is answered with one line.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

Message = dict[str, Any]
dumps: Callable[[object], str] = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Path(Protocol):
    """A way to call a tool."""

    def call(self, tool: str, arguments: Message) -> Message: ...

    def burst(self, tool: str, arguments: Message, count: int) -> None: ...


class Acp:
    """The way to the page, over stdio."""

    def __init__(self) -> None:
        self._in = os.fdopen(0, "rb", buffering=1 << 16)
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        self._id = 0
        self._address: Message = {}
        self._meta: Message | None = None

    def read(self) -> Message | None:
        line = self._in.readline()
        return json.loads(line) if line else None

    def write(self, message: Message) -> None:
        data = dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        view = memoryview(data)
        while view:
            view = view[self._out.write(view) :]

    def send(self, method: str, params: Message) -> int:
        self._id += 1
        self.write({"id": self._id, "method": method, "params": params})
        return self._id

    def ask(self, method: str, params: Message) -> Any:
        """Send a request and read until its answer; what the page sends on its own account meanwhile is refused."""
        want = self.send(method, params)
        while (message := self.read()) is not None:
            if message.get("id") == want and "method" not in message:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.refuse(message)
        raise EOFError("the page is gone")

    def refuse(self, message: Message) -> None:
        if "method" in message and "id" in message:
            self.write({"id": message["id"], "error": {"code": -32601, "message": "Method not found", "data": None}})

    def open(self) -> None:
        """Serve the page's `initialize` and `session/new`, then connect to the server that it declares."""
        server = None
        while server is None:
            message = self.read()
            if message is None:
                raise EOFError("the page is gone")
            result: Message | None = None
            if message.get("method") == "initialize":
                result = {"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"acp": True}}}
            elif message.get("method") == "session/new":
                result = {"sessionId": "bench"}
                declared = {entry["name"]: entry["serverId"] for entry in message["params"]["mcpServers"]}
                server = declared.get("user") or next(iter(declared.values()))
            if result is not None:
                self.write({"id": message["id"], "result": result})
            else:
                self.refuse(message)
        connection = self.ask("mcp/connect", {"serverId": server, "acpId": server})["connectionId"]
        self._address = {"connectionId": connection}
        handshake = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        }
        self._mcp("initialize", handshake)
        initialized = {**self._address, "method": "notifications/initialized"}
        self.write({"method": "mcp/message", "params": initialized})

    def _mcp(self, method: str, params: Message) -> Message:
        answer: Message = self.ask("mcp/message", {**self._address, "method": method, "params": params})
        return answer

    def call(self, tool: str, arguments: Message) -> Message:
        return self._mcp("tools/call", {"name": tool, "arguments": arguments})

    def burst(self, tool: str, arguments: Message, count: int) -> None:
        params = {"name": tool, "arguments": arguments}
        open_ids = {
            self.send("mcp/message", {**self._address, "method": "tools/call", "params": params}) for _ in range(count)
        }
        while open_ids:
            message = self.read()
            if message is None:
                raise EOFError("the page is gone")
            if "method" in message:
                self.refuse(message)
                continue
            check(message["result"])
            open_ids.discard(message["id"])


class HttpConnection:
    """One kept-alive HTTP connection; just enough of HTTP/1.1 for a Streamable HTTP server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", buffering=1 << 16)
        self._host = f"127.0.0.1:{port}"

    def post(self, message: Message, headers: str) -> None:
        body = dumps(message).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        )
        self._socket.sendall(head.encode() + body)

    def answer(self) -> tuple[dict[str, str], Message | None]:
        status = self._file.readline()
        if not status.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"the HTTP server answered {status!r}")
        headers = {}
        while (line := self._file.readline()) != b"\r\n":
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(self._file.readline(), 16):
                parts.append(self._file.read(size))
                self._file.readline()
            self._file.readline()
            body = b"".join(parts)
        else:
            body = self._file.read(int(headers.get("content-length", "0")))
        if headers.get("content-type", "").startswith("text/event-stream"):
            data = [line[5:] for line in body.splitlines() if line.startswith(b"data:") and len(line) > 6]
            body = data[-1] if data else b""
        return headers, json.loads(body) if body else None


class Http:
    """The way to the same tools over Streamable HTTP."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._id = 0
        self._headers = ""
        self._connections = [HttpConnection(port)]
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        first = self._connections[0]
        first.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}, "")
        headers, _ = first.answer()
        self._headers = f"Mcp-Session-Id: {headers['mcp-session-id']}\r\nMcp-Protocol-Version: 2025-11-25\r\n"
        first.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, self._headers)
        first.answer()

    def _request(self, tool: str, arguments: Message) -> Message:
        self._id += 1
        params = {"name": tool, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": self._id, "method": "tools/call", "params": params}

    def call(self, tool: str, arguments: Message) -> Message:
        connection = self._connections[0]
        connection.post(self._request(tool, arguments), self._headers)
        _, message = connection.answer()
        assert message is not None
        result: Message = message["result"]
        return result

    def burst(self, tool: str, arguments: Message, count: int) -> None:
        while len(self._connections) < count:
            self._connections.append(HttpConnection(self._port))
        for connection in self._connections[:count]:
            connection.post(self._request(tool, arguments), self._headers)
        for connection in self._connections[:count]:
            _, message = connection.answer()
            assert message is not None
            check(message["result"])


def check(result: Message) -> str:
    """The text of a tool's result; a failed call is not a fast call."""
    if result.get("isError"):
        raise RuntimeError(f"the tool failed: {result}")
    text: str = result["content"][0]["text"]
    return text


def measure(order: Message, path: Path) -> Message:
    """Carry an order out: seconds of each call, or of each burst."""
    tool, arguments, count = order.get("tool", "echo"), order.get("arguments", {}), order.get("count", 1)
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(order["rounds"]):
            start = time.perf_counter()
            if count > 1:
                path.burst(tool, arguments, count)
            else:
                result = path.call(tool, arguments)
            times.append(time.perf_counter() - start)
            if count == 1:
                check(result)
    finally:
        gc.enable()
    answer: Message = {"times": times}
    if count == 1:
        answer["text"] = len(check(result))
        if order.get("keep"):
            answer["result"] = check(result)
    return answer


def main() -> None:
    control = socket.socket(socket.AF_UNIX)
    control.connect(os.environ["SANDPORT_BENCH_CONTROL"])
    orders = control.makefile("rb")
    acp = Acp()
    acp.open()
    http = Http(int(os.environ["SANDPORT_BENCH_HTTP"]))
    paths: dict[str, Path] = {"ours": acp, "peer": http}
    control.sendall(b'{"ready":true}\n')
    while True:
        sources: list[socket.socket | int] = [control, 0]
        ready, _, _ = select.select(sources, [], [])
        if 0 in ready:
            message = acp.read()
            if message is None:
                return
            acp.refuse(message)
            continue
        line = orders.readline()
        if not line:
            return
        order = json.loads(line)
        try:
            answer = measure(order, paths[order["path"]])
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        control.sendall(dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
