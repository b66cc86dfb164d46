"""Tools over a workspace folder, written with FastMCP: list, read, search, summarise a CSV, run Python.

They run in the sandbox over ``/workspace`` and, unchanged, natively over any folder::

    from sandport_workspace import create_server

    server = create_server("/some/folder")

``mcp`` is the server over ``/workspace``, the name that Sandport's sandbox looks for.
"""

from ._server import create_server

__all__ = ["create_server", "mcp"]

mcp = create_server("/workspace")
