"""The workspace tools live outside the installed packages; put them where imports find them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "web" / "tools"))
