"""What the agent must answer, computed natively from the files in the bundle's workspace.

Usage: expected.py WORKSPACE_ZIP NAME. Prints {"path", "line", "lines", "functions"} as JSON.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile


def main(archive: str, name: str) -> None:
    definition = re.compile(rf"^class {re.escape(name)}\b")
    with zipfile.ZipFile(archive) as files:
        for path in sorted(files.namelist()):
            if not path.endswith(".py") or "test" in path:
                continue
            text = files.read(path).decode("utf-8")
            for number, line in enumerate(text.splitlines(), start=1):
                if definition.match(line):
                    functions = sum(
                        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in ast.walk(ast.parse(text))
                    )
                    found = {"path": path, "line": number, "lines": len(text.splitlines()), "functions": functions}
                    print(json.dumps(found))
                    return
    raise SystemExit(f"{archive} defines no class {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
