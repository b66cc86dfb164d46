"""Tools from packages, inside Pyodide: wheels and zipped folders."""

from __future__ import annotations

import asyncio
import importlib
import io
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import sandbox_host
from sandport_runtime._files import ArchiveError
from sandport_runtime._packages import FOLDER
from sandport_runtime._tools import LoadError, UserTools

pytestmark = pytest.mark.anyio

SERVER = "from fastmcp import FastMCP\nmcp = FastMCP('m')\n@mcp.tool\ndef {name}() -> int:\n    return {value}\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def packed(**files: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def wheel(name: str = "acme_tools", *, tag: str = "py3-none-any", metadata: str = "", **files: str) -> bytes:
    info = f"{name}-1.0.dist-info"
    return packed(
        **files,
        **{
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{metadata}",
            f"{info}/WHEEL": WHEEL.format(tag=tag),
            f"{info}/RECORD": "",
        },
    )


async def listed(tools: UserTools) -> list[str]:
    return [tool.name for tool in await tools.server.list_tools()]


async def called(tools: UserTools, name: str) -> Any:
    return (await tools.server.call_tool(name, {})).structured_content["result"]  # type: ignore[index]


def traces() -> tuple[list[str], list[str], list[str]]:
    """What packages leave: modules, entries of the path, files."""
    modules = [name for name in sys.modules if name.partition(".")[0] in ("acme", "acme_tools", "mine", "helper")]
    folders = os.listdir(FOLDER) if os.path.isdir(FOLDER) else []
    return modules, [path for path in sys.path if path.startswith(FOLDER)], folders


NOTHING: Any = ([], [], [])


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    assert traces() == NOTHING
    yield
    for name in traces()[0]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not path.startswith(FOLDER)]
    for folder in traces()[2]:
        shutil.rmtree(f"{FOLDER}/{folder}")


# -- what can be loaded ---------------------------------------------------------------------------------------

SUB = """
from fastmcp import FastMCP
from acme.deep.numbers import ANSWER
mcp = FastMCP("m")
@mcp.tool
def one() -> int:
    from . import late
    return ANSWER + late.ZERO
"""
PACKAGE = {
    "acme/__init__.py": "",
    "acme/late.py": "ZERO = 0\n",
    "acme/deep/__init__.py": "",
    "acme/deep/numbers.py": "ANSWER = 1\n",
}


@pytest.mark.parametrize(
    ("data", "server"),
    [
        (wheel(**{"acme_tools/__init__.py": SERVER.format(name="one", value=1)}), None),
        (wheel(**{"acme_tools.py": SERVER.format(name="one", value=1)}), None),
        # Its server is in a module below, as in most projects.
        (wheel(**PACKAGE, **{"acme/server.py": SUB}), None),
        (wheel(**PACKAGE, **{"acme/server.py": SUB}), "acme.server"),
        (
            wheel(**PACKAGE, **{"acme/server.py": SUB.replace("mcp =", "app =").replace("@mcp", "@app")}),
            "acme.server:app",
        ),
        (wheel(tag="py2-none-any\nTag: py3-none-any", **{"acme.py": SERVER.format(name="one", value=1)}), None),
        (wheel(tag="py310-none-any", **{"acme.py": SERVER.format(name="one", value=1)}), None),
        (wheel(**{"acme_tools-1.0.data/purelib/acme.py": SERVER.format(name="one", value=1)}), None),
        (wheel(**{"acme/part/server.py": SERVER.format(name="one", value=1)}), None),
        # Folders: modules, the package itself, a package, a project, a project in a folder as servers zip it.
        (packed(**{"mine.py": SERVER.format(name="one", value=1), "helper.py": "x = 1\n"}), None),
        (packed(**{"helper.py": "", "acme.py": "import helper\n" + SERVER.format(name="one", value=1)}), None),
        (packed(**{"__init__.py": "from .inner import mcp\n", "inner.py": SERVER.format(name="one", value=1)}), None),
        (packed(**PACKAGE, **{"acme/server.py": SUB}), None),
        (
            packed(
                **{
                    f"acme-main/{path}": text
                    for path, text in {
                        **{f"src/{path}": text for path, text in PACKAGE.items()},
                        "src/acme/server.py": SUB,
                        "tests/test_it.py": "raise SystemExit('a test is no tool: FastMCP(')",
                        "setup.py": "raise SystemExit('nor is this: FastMCP(')",
                        "pyproject.toml": "",
                    }.items()
                },
                **{"__MACOSX/acme-main/._setup.py": "\0"},
            ),
            None,
        ),
        (packed(**{"acme/part.py": SERVER.format(name="one", value=1)}), "acme.part"),
    ],
)
async def test_wheels_and_folders_are_loaded_and_leave_nothing(data: bytes, server: str | None) -> None:
    tools = UserTools()
    assert await tools.load_package("mine", data, server) == ["one"]
    assert await called(tools, "one") == 1
    assert len(traces()[1]) == len(traces()[2]) == 1
    assert await tools.unload("mine")
    assert await listed(tools) == []
    assert traces() == NOTHING


async def test_data_files_and_metadata_are_found() -> None:
    source = """
from importlib import metadata, resources
from fastmcp import FastMCP
mcp = FastMCP("m")
@mcp.tool
def motto() -> str:
    return metadata.version("acme_tools") + resources.files("acme").joinpath("data", "motto.txt").read_text()
"""
    tools = UserTools()
    await tools.load_package("mine", wheel(**{"acme/__init__.py": source, "acme/data/motto.txt": " Grüße"}))
    assert await called(tools, "motto") == "1.0 Grüße"


async def test_many_tools_and_a_lifespan() -> None:
    source = "from acme_tools.life import mcp\n"
    life = """
from contextlib import asynccontextmanager
from fastmcp import FastMCP
import builtins
builtins.acme_seen = seen = []
@asynccontextmanager
async def life(server):
    seen.append("in")
    yield {}
    seen.append("out")
mcp = FastMCP("m", lifespan=life)
for number in range(300):
    mcp.tool(lambda n=number: n, name=f"tool_{number}")
"""
    import builtins

    tools = UserTools()
    data = wheel(**{"acme_tools/__init__.py": source, "acme_tools/life.py": life})
    assert len(await tools.load_package("mine", data)) == 300
    assert len(await listed(tools)) == 300
    assert builtins.acme_seen == ["in"]  # type: ignore[attr-defined]
    await tools.unload("mine")
    assert builtins.acme_seen == ["in", "out"]  # type: ignore[attr-defined]
    del builtins.acme_seen  # type: ignore[attr-defined]


# -- reloading ------------------------------------------------------------------------------------------------


async def test_a_new_version_replaces_all_of_the_old_one() -> None:
    tools = UserTools()
    old = {"acme/__init__.py": "from .a import mcp", "acme/a.py": SERVER.format(name="one", value=1), "acme/b.py": ""}
    await tools.load_package("mine", wheel(**old))
    importlib.import_module("acme.b")

    new = {"acme/__init__.py": "from .a import mcp", "acme/a.py": SERVER.format(name="one", value=2)}
    await tools.load_package("mine", wheel(**new))
    assert await called(tools, "one") == 2
    assert "acme.b" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("acme.b")
    # A text in the place of a package, and the other way round.
    await tools.load("mine", SERVER.format(name="two", value=2))
    assert traces() == NOTHING
    await tools.load_package("mine", wheel(**new))
    assert await listed(tools) == ["one"]
    assert "sandport_user.mine" not in sys.modules
    # The order of the tools is that of the first loads.
    await tools.load("other", SERVER.format(name="three", value=3))
    await tools.load_package("mine", wheel(**old))
    assert await listed(tools) == ["one", "three"]


@pytest.mark.parametrize(
    "bad",
    [
        {"acme/__init__.py": "x = ("},
        {"acme/__init__.py": "from .gone import x"},
        {"acme/__init__.py": "import acme.a", "acme/a.py": "raise SystemExit(1)"},
        {"acme/__init__.py": "x = 1"},
        {"acme/__init__.py": SERVER.format(name="taken", value=2)},
        {
            "acme/__init__.py": "from fastmcp import FastMCP\n"
            "from contextlib import asynccontextmanager\n"
            "@asynccontextmanager\n"
            "async def life(server):\n    raise ValueError('no life')\n    yield\n"
            "mcp = FastMCP('m', lifespan=life)\n"
        },
        {"acme/__init__.py": "", "helper.so": ""},
        {"../up.py": ""},
    ],
)
async def test_a_version_that_does_not_load_leaves_the_old_one_working(bad: dict[str, str]) -> None:
    tools = UserTools()
    await tools.load("other", SERVER.format(name="taken", value=1))
    await tools.load_package("mine", wheel(**PACKAGE, **{"acme/server.py": SUB}))
    before = traces()
    with pytest.raises((LoadError, ArchiveError)):
        await tools.load_package("mine", wheel(**bad))
    assert traces() == before
    # A module that the old version imports at its call is still its own.
    assert await called(tools, "one") == 1
    assert await listed(tools) == ["taken", "one"]


async def test_a_text_that_does_not_load_leaves_the_old_one_whole() -> None:
    tools = UserTools()
    await tools.load("first", SERVER.format(name="taken", value=1))
    await tools.load("mine", SERVER.format(name="one", value=1))
    module = sys.modules["sandport_user.mine"]
    with pytest.raises(LoadError, match="already has a tool"):
        await tools.load("mine", SERVER.format(name="taken", value=2))
    assert sys.modules["sandport_user.mine"] is module
    assert await called(tools, "one") == 1


async def test_loads_and_unloads_at_once_happen_in_their_order() -> None:
    tools = UserTools()
    data = {n: wheel(**{"acme.py": SERVER.format(name="one", value=n)}) for n in (1, 2)}
    outcomes = await asyncio.gather(
        tools.load_package("mine", data[1]),
        tools.load("other", SERVER.format(name="one", value=3)),
        tools.load_package("rival", data[1]),
        tools.load_package("mine", data[2]),
        tools.unload("mine"),
        tools.load_package("rival", data[2]),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "list",
        "LoadError",
        "LoadError",
        "list",
        "bool",
        "list",
    ]
    assert await called(tools, "one") == 2


# -- what cannot be loaded ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "server", "words"),
    [
        (wheel(tag="cp314-cp314-pyemscripten_2026_0_wasm32", **{"acme.py": ""}), None, "made for cp314-cp314-pyem"),
        (wheel(tag="py2-none-any", **{"acme.py": ""}), None, "--with acme_tools"),
        (wheel(tag="py399-none-any", **{"acme.py": ""}), None, "made for py399"),
        (wheel(metadata="Requires-Python: >=3.99\n", **{"acme.py": ""}), None, "needs Python >=3.99"),
        (wheel(metadata="Requires-Dist: numpy>=2\n", **{"acme.py": ""}), None, "numpy>=2, which the bundle lacks"),
        (
            wheel(metadata="Requires-Dist: numpy\n", **{"acme.py": ""}),
            None,
            "./build.sh build --with numpy --with acme_tools",
        ),
        (wheel(metadata="Requires-Dist: pydantic<1\n", **{"acme.py": ""}), None, "pydantic<1 (the bundle has 2."),
        (wheel(metadata="Requires-Dist: not one\n", **{"acme.py": ""}), None, "metadata cannot be read"),
        (wheel(**{"json.py": SERVER.format(name="one", value=1)}), None, "'json' of 'mine' is one of Python's own"),
        (wheel(**{"fastmcp/__init__.py": ""}), None, "'fastmcp' of 'mine' is in the sandbox already"),
        (wheel(**{"sandport_runtime/__init__.py": ""}), None, "'sandport_runtime' of 'mine' is in the sandbox"),
        (wheel(**{"js.py": "", "acme.py": ""}), None, "'js' of 'mine' is in the sandbox already"),
        (packed(**{"acme.py": "", "lib/thing.so": ""}), None, "native code (thing.so)"),
        (packed(**{"readme.txt": ""}), None, "holds no Python module"),
        (packed(**{"acme.py": "x = 1"}), None, "defines no server"),
        (
            packed(**{"acme.py": SERVER.format(name="a", value=1).replace("mcp =", "mcp = two =")}),
            "acme:x",
            "no FastMCP",
        ),
        (packed(**{"acme.py": "from fastmcp import FastMCP\na = FastMCP('a')\nb = FastMCP('b')"}), None, "2 servers"),
        (
            packed(**{f"{name}.py": SERVER.format(name=name, value=1) for name in ("helper", "acme")}),
            None,
            "2 servers: name one of them `mcp`",
        ),
        (packed(**{"acme.py": ""}), "json", "has no module 'json'; it has acme"),
        (packed(**{"acme.py": ""}), "acme;x", "names no server"),
        (packed(**{"acme/__init__.py": ""}), "acme.gone", "No module named 'acme.gone'"),
    ],
)
async def test_what_cannot_work_is_refused_with_the_reason(data: bytes, server: str | None, words: str) -> None:
    tools = UserTools()
    modules = dict(sys.modules)
    with pytest.raises(LoadError) as caught:
        await tools.load_package("mine", data, server)
    assert words in str(caught.value)
    assert "sandport_runtime/" not in str(caught.value)
    assert traces() == NOTHING
    assert all(sys.modules.get(name) is module for name, module in modules.items())


async def test_requirements_that_are_met_or_not_meant_are_no_hindrance() -> None:
    metadata = "".join(
        f"Requires-Dist: {text}\n"
        for text in (
            "pydantic>=2",
            "FastMCP[apps]",
            "numpy; extra == 'science'",
            "numpy; sys_platform == 'win32'",
            "beartype",
            "acme-base",
        )
    )
    tools = UserTools()
    # Another package that was loaded counts as well.
    await tools.load_package("base", wheel("acme_base", **{"helper.py": SERVER.format(name="base", value=1)}))
    data = wheel(metadata=metadata, **{"acme.py": "import helper\n" + SERVER.format(name="one", value=1)})
    assert await tools.load_package("mine", data) == ["one"]


async def test_two_packages_with_one_tool_or_module_name() -> None:
    tools = UserTools()
    await tools.load_package("mine", wheel(**{"acme.py": SERVER.format(name="one", value=1)}))
    with pytest.raises(LoadError, match="the package 'mine' already has a module 'acme'"):
        await tools.load_package("yours", wheel(**{"acme/__init__.py": SERVER.format(name="two", value=1)}))
    with pytest.raises(LoadError, match="'mine' already has a tool 'one'"):
        await tools.load_package("yours", wheel(**{"helper.py": SERVER.format(name="one", value=1)}))
    with pytest.raises(LoadError, match="'mine' already has a tool 'one'"):
        await tools.load("yours", SERVER.format(name="one", value=1))
    assert await called(tools, "one") == 1
    assert traces()[0] == ["acme"]


async def test_a_traceback_begins_with_the_packages_own_frame() -> None:
    with pytest.raises(LoadError) as caught:
        await UserTools().load_package(
            "mine",
            packed(**{"acme/__init__.py": "from acme import part\n", "acme/part.py": "x = 1\ny = x / 0\n"}),
        )
    lines = str(caught.value).splitlines()
    assert "/acme/__init__.py" in lines[1]
    assert "part.py" in lines[3]
    assert "line 2" in lines[3]
    assert "y = x / 0" in str(caught.value)
    assert "importlib" not in str(caught.value)


@pytest.mark.parametrize("name", ["a-b", "", "../x", "1a", "class", None])
async def test_a_name_must_be_an_identifier(name: Any) -> None:
    with pytest.raises(LoadError, match="identifier"):
        await UserTools().load_package(name, packed(**{"acme.py": ""}))
    with pytest.raises(LoadError, match="identifier"):
        await UserTools().load(name, "")


@pytest.mark.parametrize("data", [b"", b"PK", b"no zip"])
async def test_what_is_no_archive_is_said(data: bytes) -> None:
    with pytest.raises(ArchiveError, match="no zip"):
        await UserTools().load_package("mine", data)


async def test_an_import_without_end_is_ended_and_the_old_version_stays() -> None:
    tools = UserTools()
    await tools.load_package("mine", wheel(**{"acme.py": SERVER.format(name="one", value=1)}))
    before = traces()
    endless = wheel(**{"acme/__init__.py": "from acme import spin", "acme/spin.py": "while True:\n    pass\n"})
    sandbox_host.arm(0.2)
    try:
        with pytest.raises(LoadError, match="within the time limit"):
            await tools.load_package("mine", endless)
    finally:
        sandbox_host.disarm()
    assert traces() == before
    assert await called(tools, "one") == 1


LIFE = """
import asyncio
from contextlib import asynccontextmanager
from fastmcp import FastMCP
@asynccontextmanager
async def life(server):
    {0}
    yield
    {1}
mcp = FastMCP("m", lifespan=life)
@mcp.tool
def one() -> int:
    return 1
"""


async def test_a_lifespan_that_does_not_begin_is_given_up() -> None:
    tools = UserTools(limit=0.05)
    with pytest.raises(LoadError, match="within the time limit"):
        await tools.load("mine", LIFE.format("await asyncio.Event().wait()", "pass"))
    with pytest.raises(LoadError, match="within the time limit"):
        await tools.load("mine", LIFE.format("raise KeyboardInterrupt", "pass"))
    assert await tools.load("mine", LIFE.format("pass", "pass")) == ["one"]


@pytest.mark.parametrize("end", ["raise ValueError", "raise KeyboardInterrupt", "await asyncio.Event().wait()"])
async def test_a_lifespan_that_does_not_end_goes_all_the_same(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandport_runtime._tools.STOP_LIMIT", 0.05)
    tools = UserTools()
    await tools.load("mine", LIFE.format("pass", end))
    assert await tools.unload("mine")
    assert await listed(tools) == []
    assert await tools.load("mine", LIFE.format("pass", "pass")) == ["one"]


def test_packages_are_kept_apart_from_the_workspace() -> None:
    assert not Path(FOLDER).is_relative_to("/workspace")
