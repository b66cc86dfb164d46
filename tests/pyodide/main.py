"""Starts pytest inside Pyodide; run by run.mjs, never by itself. Its last expression is (passed, failed, skipped)."""

import os
import sys

sys.path.append("/test-packages")
sys.path.insert(1, "/repo/tests/pyodide")
# The demo's script is not in the tools' bundle; its tests run here all the same.
sys.path.append("/repo/core")
os.chdir("/repo")
os.environ["PYTHONDONTWRITEBYTECODE"] = sys.dont_write_bytecode = "1"  # type: ignore[assignment]

from sandport_runtime import boot  # noqa: E402

boot.prepare({})

import blocking_loop  # noqa: E402
import pytest  # noqa: E402


class Count:
    """Counts outcomes, and prints a line for what did not pass."""

    def __init__(self) -> None:
        self.passed = self.failed = self.skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed += 1
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed += 1


count = Count()
defaults = ["tests/core", "tests/pyodide", "tests/web_tools"]
chosen = list(arguments) or defaults  # type: ignore[name-defined]  # noqa: F821
with blocking_loop.installed():
    code = pytest.main(
        [
            "-q",
            "--strict-markers",
            "--import-mode=importlib",
            "-p",
            "anyio",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:faulthandler",
            "--rootdir=/repo",
            "-o",
            "addopts=",
            "-o",
            # pytest-timeout needs signals or threads; its marker may stand all the same.
            "markers=timeout: a limit that is not kept here",
            "--tb=short",
            "-rs",
            *chosen,
        ],
        plugins=[count],
    )
if code not in (0, 1, 5) and count.failed == 0:
    count.failed = 1
(count.passed, count.failed, count.skipped)  # noqa: B018 - what runPython returns
