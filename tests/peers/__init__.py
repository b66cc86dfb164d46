"""Real programs of others against Sandport, in both roles. `python -m tests.peers` runs them and prints a table.

Invariant: a peer is a real release of somebody else's program, or a recording of one; nothing here imitates a peer that
could be installed. The one exception is `legacy`, which has no release left: its conversation is written from facts.
"""
