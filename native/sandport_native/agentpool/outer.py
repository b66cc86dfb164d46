"""agentpool's own ACP connection as the outer connection of Sandport's core.

Invariant: an outer request that nobody waits for any more is cancelled at the client and leaves no entry behind; an
error keeps its code, message and data.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import anyio
from acp.connection import Connection
from acp.exceptions import RequestError

from sandport.errors import ChannelClosed, PeerError
from sandport.rpc import MAX_LATE, Late
from sandport_native.agentpool.streams import LaneOrder

CANCEL_TIMEOUT = 1.0
"""Seconds to write the cancellation; a client that reads nothing must not hold up the one who gives up."""


class AgentpoolOuter:
    """`sandport.rpc.AcpOuter` over an `acp.connection.Connection`.

    Args:
        connection: agentpool's.
        order: of its input; answers wait for what came before them.
    """

    def __init__(self, connection: Connection, order: LaneOrder) -> None:
        self._connection = connection
        self._order = order
        self._late = 0
        self._telling: set[asyncio.Future[None]] = set()

    async def request(self, method: str, params: Any, *, timeout: float | None = None, late: Late | None = None) -> Any:
        """See `sandport.rpc.AcpOuter.request`."""
        # `send_request` takes this number before it first waits, so nobody can come in between.
        request_id = self._connection._next_request_id
        result: Any = None
        try:
            with anyio.fail_after(timeout):
                result = await self._connection.send_request(method, params)
                await self._order.caught_up()
                return result
        except RequestError as exc:
            raise PeerError(exc.code, str(exc), exc.data) from exc
        except TimeoutError:
            self._expect_late(request_id, method, late, result)
            await self._give_up(request_id)
            raise
        except asyncio.CancelledError:
            self._expect_late(request_id, method, late, result)
            with anyio.CancelScope(shield=True):
                await self._give_up(request_id)
            raise
        except (
            ConnectionError,
            OSError,
            RuntimeError,
            anyio.ClosedResourceError,
            anyio.BrokenResourceError,
        ) as exc:
            raise ChannelClosed("the ACP connection has ended") from exc

    async def notify(self, method: str, params: Any) -> None:
        """See `sandport.rpc.AcpOuter.notify`."""
        try:
            await self._connection.send_notification(method, params)
        except (
            ConnectionError,
            OSError,
            RuntimeError,
            anyio.ClosedResourceError,
            anyio.BrokenResourceError,
        ) as exc:
            raise ChannelClosed("the ACP connection has ended") from exc

    def _expect_late(self, request_id: int, method: str, late: Late | None, result: Any) -> None:
        """The caller gives up. Its entry would stay until an answer comes, perhaps never: only `late` keeps one."""
        state = self._connection._state
        state.resolve_outgoing(request_id, None)
        if late is None:
            return
        if result is not None:
            self._tell_late(late, result)
        elif self._late < MAX_LATE:
            self._late += 1

            def answered(future: asyncio.Future[Any]) -> None:
                self._late -= 1
                if not future.cancelled() and future.exception() is None:
                    self._tell_late(late, future.result())

            state.register_outgoing(request_id, method).add_done_callback(answered)

    def _tell_late(self, late: Late, result: Any) -> None:
        task = asyncio.ensure_future(late(result))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _give_up(self, request_id: int) -> None:
        with anyio.move_on_after(CANCEL_TIMEOUT):
            with contextlib.suppress(ChannelClosed):
                await self.notify("$/cancel_request", {"requestId": request_id})
