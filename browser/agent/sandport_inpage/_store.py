"""Where sessions are kept when their agent is not there.

Invariant: a record is written whole or not at all; the store does not read what it keeps. The worker has no storage of
its own: in the page, the page keeps the texts for it.
"""

from __future__ import annotations

from typing import Protocol, TypedDict

__all__ = ["Head", "MemoryStore", "SessionStore", "StoreError"]


class StoreError(Exception):
    """The store cannot be read or written; the text says why."""


class Head(TypedDict):
    """What `session/list` tells of a session."""

    sessionId: str
    cwd: str
    title: str | None
    updatedAt: str
    """ISO 8601, UTC."""


class SessionStore(Protocol):
    """Keeps one text for each session."""

    async def list(self) -> list[Head]:
        """The heads of all sessions, in no order.

        Raises:
            StoreError: the store cannot be read.
        """
        ...

    async def read(self, session_id: str) -> str | None:
        """The text of a session, or `None` when there is none.

        Raises:
            StoreError: the store cannot be read.
        """
        ...

    async def write(self, head: Head, text: str) -> None:
        """Keep a session, in place of what was kept under its id.

        Raises:
            StoreError: the store is full or cannot be written.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Forget a session; an unknown id does nothing.

        Raises:
            StoreError: the store cannot be written.
        """
        ...


class MemoryStore:
    """A store that lasts as long as the program."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[Head, str]] = {}

    async def list(self) -> list[Head]:
        """See `SessionStore.list`."""
        return [head for head, _ in self._records.values()]

    async def read(self, session_id: str) -> str | None:
        """See `SessionStore.read`."""
        record = self._records.get(session_id)
        return record[1] if record is not None else None

    async def write(self, head: Head, text: str) -> None:
        """See `SessionStore.write`."""
        self._records[head["sessionId"]] = (head, text)

    async def delete(self, session_id: str) -> None:
        """See `SessionStore.delete`."""
        self._records.pop(session_id, None)
