"""The MCP project's own conformance suite against a server that Sandport hosts. `python -m tests.conformance` runs it.

Invariant: MCP over ACP lies between the suite and the server, whole messages both ways; the suite's HTTP ends in a shim
that exists for this test alone.
"""
