"""What must not be the same in two sandboxes that started from one memory image.

Invariant: after `refresh()` no generator of random numbers, cached node id, temporary name or clock base is the one
that the image was made with. (`os.urandom`, `secrets` and `uuid4` ask the browser each time and need nothing.)

The hash seed of str and bytes stays that of the image: it is built into every dict. See docs/sandbox.md.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

__all__ = ["refresh"]


def refresh(environ: Mapping[str, str]) -> None:
    """Make everything fresh that a memory image froze.

    Args:
        environ: the environment of this boot; it replaces the image's.
    """
    for name in list(os.environ):
        if name not in environ:
            del os.environ[name]
    os.environ.update(environ)

    random.seed(os.urandom(32))
    for obj in gc.get_objects():
        # Instances with their own state, made by some module at import; SystemRandom has none.
        if isinstance(obj, random.Random) and not isinstance(obj, random.SystemRandom):
            obj.seed(os.urandom(32))

    # Private members of modules that may not be there: no type knows them.
    modules = cast("dict[str, Any]", sys.modules)
    tempfile = modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None
        tempfile.tempdir = None

    uuid = modules.get("uuid")
    if uuid is not None:
        uuid._node = None
        uuid._last_timestamp = None
        if hasattr(uuid, "_last_timestamp_v7"):
            uuid._last_timestamp_v7 = None
            uuid._last_counter_v7 = 0

    logging = modules.get("logging")
    if logging is not None:
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()

    ssl = modules.get("_ssl")
    if ssl is not None and hasattr(ssl, "RAND_add"):
        ssl.RAND_add(os.urandom(32), 32.0)

    numpy_random = modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(list(os.urandom(32)))

    with suppress(AttributeError):
        time.tzset()
