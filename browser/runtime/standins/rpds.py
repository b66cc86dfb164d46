"""Stand-in for rpds-py, which has no wheel for Pyodide: the persistent collections of pyrsistent under its names.

Invariant: it lies last on sys.path, so a real `rpds` wins.
"""

from pyrsistent_as_rpds.pure import *  # noqa: F403
