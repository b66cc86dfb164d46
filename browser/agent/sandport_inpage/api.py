"""The agent for any host: `serve_agent` needs a `sandport.Channel`, a store and a model, and nothing of a browser."""

from __future__ import annotations

from sandport_inpage._agent import serve_agent
from sandport_inpage._models import ModelChoice, demo_model
from sandport_inpage._place import PAGE, PROGRAM, Place
from sandport_inpage._store import Head, MemoryStore, SessionStore, StoreError

__all__ = [
    "PAGE",
    "PROGRAM",
    "Head",
    "MemoryStore",
    "ModelChoice",
    "Place",
    "SessionStore",
    "StoreError",
    "demo_model",
    "serve_agent",
]
