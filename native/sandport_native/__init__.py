"""The native side of Sandport: what needs sockets and processes.

Invariant: this package may import `sandport` (the core); the core never imports it.
"""
