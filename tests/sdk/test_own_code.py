"""Which files go along with a function: what ignore files say, what is found, what is too much."""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.core.errors import InvalidJob, TooLarge
from corral.sdk.submit import own_code, own_modules, packages
from corral.sdk.submit.ignore_files import Ignores
from corral.sdk.submit.own_code import OwnCode

RULES = r"""
# a comment
*.bin
!kept.bin
/top.txt
build/
docs/*.html
**/deep/x
a/**/z
logs/**
name[0-9].txt
odd\#name
\!bang
trailing@@@
[!a]at
"""
PATHS = (
    "a.bin", "x/b.bin", "kept.bin", "x/kept.bin", "top.txt", "x/top.txt", "build/a", "x/build/a",
    "build2/a", "docs/a.html", "docs/x/a.html", "x/docs/a.html", "deep/x", "y/deep/x", "a/z",
    "a/b/z", "a/b/c/z", "b/a/z", "logs/one", "x/logs/one", "name1.txt", "namex.txt", "odd#name",
    "!bang", "trailing", "cat", "aat", "plain",
)  # fmt: skip


def left_out(folder: Path, path: str) -> bool:
    """As a walk asks: what lies in a folder that is left out is left out with it."""
    ignores, place = Ignores().inside(str(folder)), folder
    *folders, name = path.split("/")
    for part in folders:
        place = place / part
        if ignores.leaves_out(str(place), is_folder=True):
            return True
        ignores = ignores.inside(str(place))
    return bool(ignores.leaves_out(str(place / name), is_folder=False))


def test_ignore_files_mean_what_they_mean_to_git(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text(RULES.replace("@", " "))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / ".gitignore").write_text("plain\n!top.txt\n")
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    (tmp_path / "x" / "plain").write_text("")
    paths = (*PATHS, "x/plain")
    said = subprocess.run(
        ["git", "-C", str(tmp_path), "check-ignore", "--no-index", "-z", "--stdin"],
        input="\0".join(paths),
        capture_output=True,
        text=True,
        check=True,
    )
    git = set(said.stdout.split("\0")) - {""}
    assert {path for path in paths if left_out(tmp_path, path)} == git
    assert "a.bin" in git
    assert "plain" not in git


Make = Callable[..., None]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Modules of the caller's own, importable here."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)

    def made(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()

    yield made
    for name in set(sys.modules) - known:
        del sys.modules[name]


def packed(*tops: str) -> OwnCode:
    along = own_code.CodeAlong()
    along.meet(tops)
    code = along.packed()
    assert code is not None
    return code


def names(*tops: str) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(packed(*tops).data)).namelist()


def test_what_modules_import_goes_along_wherever_it_stands(make: Make) -> None:
    make(
        runs__log_txt="",
        gate_py="import json, hinge as h, pytest, runs\nif True: from latch.bolt import x\n",
        hinge_py="def f():\n    import spring\n",
        spring_py="'''\nfrom nothing import x\n'''\nimport gate\n",
        latch__bolt_py="x = 1\n",
        alone_py="",
    )
    assert names("gate") == ["gate.py", "hinge.py", "latch/bolt.py", "spring.py"]
    assert "spring" not in sys.modules
    assert names("alone") == ["alone.py"]


def test_the_same_files_are_the_same_bytes_and_are_said_once(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(stile_py="x = 1\n")
    first = packed("stile")
    assert packed("stile") is first
    (tmp_path / "stile.py").write_text("x = 2\n")
    first._look_again = 0.0
    second = packed("stile")
    assert second.sha256 != first.sha256
    (tmp_path / "stile.py").write_text("x = 1\n")
    second._look_again = 0.0
    assert packed("stile").sha256 == first.sha256
    assert capsys.readouterr().err == "corral: sent along: stile (1 file, 122 B)\n" * 2


def test_too_much_says_what_is_large(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(barn____init___py="", barn__hay="x" * 900, barn__straw="x" * 200)
    (tmp_path / "barn" / "__init__.py").write_text("")
    monkeypatch.setattr(own_code, "LIMIT", 1000)
    with pytest.raises(TooLarge, match=r"barn/hay \(900 B\).*\.corralignore.*code=\(\)"):
        packed("barn")
    (tmp_path / "barn" / ".corralignore").write_text("hay\n")
    assert names("barn") == ["barn/__init__.py", "barn/straw"]


def test_installed_from_a_folder_is_ones_own(make: Make, tmp_path: Path) -> None:
    """No registry has what `pip install .` put into site-packages."""
    site = tmp_path / "lib" / "site-packages"
    for name, url in (("crook", '{"dir_info": {}, "url": "file:///x"}'), ("fork", '{"url": "x"}')):
        info = site / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").write_text(f"{name}.py,,\n")
        (info / "direct_url.json").write_text(url)
        (site / f"{name}.py").write_text("")
    sys.path.insert(0, str(site))
    try:
        assert own_modules.own_root("crook") is not None
        assert own_modules.own_root("fork") is None
    finally:
        sys.path.remove(str(site))


def test_a_function_that_needs_none_sends_none(make: Make) -> None:
    """Its worker then needs nothing of what its module imports for others."""
    make(
        pond_py="",
        paddock_py="""
import os, pytest
from pathlib import Path
NAME, LIST = "paddock", []
def alone(): return os.getpid(), NAME
def lays(): return Path(NAME)
def lays_itself():
    from os import refers
    from pathlib import Path
    return Path(NAME)
def refers(): return alone()
def holds(): return LIST
def imports():
    import pond
def looks(): return open(__file__)
def outer():
    def inner(): return alone()
    return inner
def lonely():
    return lambda: NAME
class Duck: pass
""",
    )
    paddock = importlib.import_module("paddock")
    along = own_code.along_of({})
    assert along is not None
    for function in (len, paddock.alone, paddock.lays, paddock.lays_itself, paddock.lonely()):
        packages.pickle_function(function, along)
    assert along.packed() is None
    assert own_code.along_of({"code": ()}) is None

    def both() -> str:
        import pond  # type: ignore[import-not-found]

        return str(pond) + __file__

    both.__module__, both.__qualname__ = "__main__", "both"
    for function, met in (
        (both, {"pond"}),
        (paddock.refers, {"paddock"}),
        (paddock.holds, {"paddock"}),
        (paddock.imports, {"paddock", "pond"}),
        (paddock.looks, {"paddock"}),
        (paddock.outer(), {"paddock"}),
        (lambda: paddock.alone(), {"paddock"}),
    ):
        for _ in range(2):
            along = own_code.CodeAlong()
            packages.pickle_function(function, along)
            assert along.met == met, function
    along = own_code.CodeAlong()
    packages.pickle_arguments((3,), {"k": paddock.Duck()}, along)
    assert along.met == {"paddock"}


def test_a_cached_function_goes_by_name_where_its_name_finds_it(make: Make) -> None:
    make(
        mill_py="""
import functools
@functools.lru_cache
def grind(x): return x * 2
def _plain(x): return x * 3
hidden = functools.cache(_plain)
"""
    )
    mill = importlib.import_module("mill")
    for function in (mill.grind, functools.partial(mill.grind, 2)):
        along = own_code.CodeAlong()
        data = packages.pickle_function(function, along)
        assert along.met == {"mill"}
        assert b"operator" not in data
        along = own_code.CodeAlong()
        packages.pickle_arguments((function,), {}, along)
        assert along.met == {"mill"}
    hidden = pickle.loads(packages.pickle_function(mill.hidden, own_code.CodeAlong()))
    assert (hidden(2), hidden.cache_parameters()["maxsize"]) == (6, None)


@pytest.mark.parametrize("said", ["lib", 3, [3], ["nowhere"], [sys]])
def test_what_cannot_be_code(said: object) -> None:
    with pytest.raises(InvalidJob, match=r"^code"):
        own_code.CodeAlong(said)


def test_through_a_link_the_same_is_left_out(make: Make, tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "far" / ".gitignore").write_text("*.csv\n/away/well/made.py\n")
    (tmp_path / "far" / ".git").mkdir()
    (tmp_path / "far" / "away" / "well").mkdir()
    for name in ("__init__.py", "made.py", "data.csv"):
        (tmp_path / "far" / "away" / "well" / name).write_text("")
    (tmp_path / "well").symlink_to(tmp_path / "far" / "away" / "well")
    importlib.import_module("well")
    assert names("well") == ["well/__init__.py"]
    importlib.import_module("well.made")
    (tmp_path / "well" / "more.py").write_text("")
    packed("well")._look_again = 0.0
    assert names("well") == ["well/__init__.py", "well/made.py", "well/more.py"]


def test_what_cannot_be_sent_is_said(make: Make, tmp_path: Path) -> None:
    make(heath__grass_py="")
    (tmp_path / "heath" / "itself.py").symlink_to("itself.py")
    assert names("heath") == ["heath/grass.py"]
    (tmp_path / "heath" / "caf\udce9.txt").write_text("")
    said = own_code.CodeAlong(["heath"])
    with pytest.raises(InvalidJob, match="is no text"):
        said.packed()


def test_a_module_that_is_gone_meanwhile_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"gone\.py' cannot be read: No such file"):
        own_code._read(str(tmp_path / "gone.py"))


def test_links_without_end_are_refused_soon(tmp_path: Path) -> None:
    folder = tmp_path / "webbed"
    for n in range(9):
        (folder / f"n{n}").mkdir(parents=True)
        for other in range(9):
            if other != n:
                (folder / f"n{n}" / f"to{other}").symlink_to(folder / f"n{other}")
    (folder / "__init__.py").touch()
    along = own_code.along_of({"code": [folder]})
    assert along is not None
    with pytest.raises(TooLarge, match="more than 50,000 files and folders"):
        along.packed()
    deep = tmp_path / "deep"
    place = deep
    for _ in range(120):
        place /= "d"
    place.mkdir(parents=True)
    (deep / "__init__.py").touch()
    along = own_code.along_of({"code": [deep]})
    assert along is not None
    with pytest.raises(InvalidJob, match="lies in more than 100 folders"):
        along.packed()


def test_a_file_that_goes_away_meanwhile_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "fleeting"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (gone := folder / "gone.py").touch()
    write_zip = packages.write_zip

    def late(files: list[tuple[str, Path]], what: str) -> bytes:
        gone.unlink(missing_ok=True)
        return write_zip(files, what)

    monkeypatch.setattr("corral.sdk.submit.own_code.write_zip", late)
    along = own_code.along_of({"code": [folder]})
    assert along is not None
    code = along.packed()
    assert code is not None
    assert code.count == 1
