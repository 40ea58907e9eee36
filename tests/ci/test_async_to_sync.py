"""The generated blocking modules: what becomes of each construct, and that the tree's are up to date."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parent.parent.parent / ".ci" / "async_to_sync.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("async_to_sync", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load()


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("async def f() -> int:\n    return await g()\n", "def f() -> int:\n    return g()\n"),
        ("async with a as b:\n    async for c in b:\n        pass\n", "with a as b:\n    for c in b:\n        pass\n"),
        ("class AsyncClient(AsyncBase): ...\n", "class Client(Base): ...\n"),
        ("from wire.async_connection import x_async\n", "from wire.connection import x\n"),
        ("def __aenter__(self): ...\n", "def __enter__(self): ...\n"),
        ('"""`async with AsyncClient()`: await it."""\n', '"""`with Client()`: it."""\n'),
        ("x = 1  # as AsyncClient does\n", "x = 1  # as Client does\n"),
        ("await open()  # async only\nx = 1\n", "x = 1\n"),
        ("await open(\n    1,\n)  # async only\nx = 1\n", "x = 1\n"),
        ("@cached\nasync def f():  # async only\n    x = 1\n    return x\ny = 1\n", "y = 1\n"),
        ("if x:\n    '''One.\n\n    Two.\n    '''  # async only\n    # sync: 'Three.'\n", "if x:\n    'Three.'\n"),
        ("# sync: from client_async import AsyncClient\n", "from client_async import AsyncClient\n"),
        ("x = [\n    # sync: 'AsyncClient',\n    'AsyncClient',\n]\n", "x = [\n    'AsyncClient',\n    'Client',\n]\n"),
        ("f'{x} async with {await y()}'\n", "f'{x} with {y()}'\n"),
    ],
)  # fmt: skip
def test_each_construct_is_translated(source: str, result: str) -> None:
    assert tool.converted(source) == result


def test_a_mark_that_belongs_to_no_statement_is_refused() -> None:
    with pytest.raises(tool.NotConvertible, match="line 2"):
        tool.converted("x = [\n    1,  # async only\n    2,\n]\n")


def test_a_module_that_still_needs_asyncio_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "client_async.py"
    source.write_text("import asyncio\n\nasync def f() -> None:\n    await asyncio.sleep(1)\n")
    with pytest.raises(tool.NotConvertible, match="still uses asyncio"):
        tool.generated(source)


def test_a_generated_module_says_so_and_has_no_import_too_many(tmp_path: Path) -> None:
    source = tmp_path / "client_async.py"
    source.write_text("import asyncio\n\nasync def f():\n    await asyncio.sleep(1)  # async only\n    # sync: pass\n")
    lines = tool.generated(source).splitlines()
    assert lines[0].startswith("# Generated from client_async.py by .ci/async_to_sync.py")
    assert "import asyncio" not in lines


def test_a_changed_source_fails_the_check_until_it_is_generated_anew(tmp_path: Path) -> None:
    shutil.copytree(TOOL.parent, tmp_path / ".ci")
    room = tmp_path / "wire"
    room.mkdir()
    (room / "client_async.py").write_text("async def f() -> int:\n    return 1\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [sys.executable, tmp_path / ".ci" / TOOL.name, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    checked = run("--check")
    assert checked.returncode == 1
    assert "wire/client.py is not what client_async.py gives" in checked.stderr
    assert not (room / "client.py").exists()
    assert run().returncode == 0
    assert run("--check").returncode == 0
    (room / "client_async.py").write_text("async def f() -> int:\n    return 2\n")
    assert run("--check").returncode == 1
