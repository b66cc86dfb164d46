"""A stdio MCP server that is a wire to the bridge which had it started, for agents that know no HTTP servers.

Its place and secret come in the environment. It takes the standard library alone, so that it is there at once and
weighs little; it ends with its stdin, and when the bridge hangs up.
"""

from __future__ import annotations

import os
import socket
import threading

CHUNK = 64 * 1024


def main() -> None:
    """Carry bytes between stdio and the bridge until either side ends."""
    with socket.create_connection(("127.0.0.1", int(os.environ["SANDPORT_BRIDGE_PORT"]))) as bridge:
        bridge.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bridge.sendall(os.environ["SANDPORT_BRIDGE_SECRET"].encode() + b"\n")
        threading.Thread(target=_upwards, args=(bridge,), daemon=True).start()
        while data := bridge.recv(CHUNK):
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
    os._exit(0)  # the other thread may wait for a stdin that never ends


def _upwards(bridge: socket.socket) -> None:
    try:
        while data := os.read(0, CHUNK):
            bridge.sendall(data)
        # What is under way may still be answered; the bridge then hangs up.
        bridge.shutdown(socket.SHUT_WR)
    except OSError:
        pass


if __name__ == "__main__":
    main()
