"""The page of a folder, its docstring, names what is there and nothing else."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import fairlead

ROOT = Path(fairlead.__file__).parent
FOLDERS = sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.rglob("*/__init__.py"))
#: Their pages name every module.
COMPLETE = (
    "decide",
    "engine",
    "engine/reduce",
    "records",
    "salvage",
    "schedule",
    "store",
    "store/kv",
    "store/rocks",
)


def page_of(folder: str) -> str:
    module = importlib.import_module("fairlead." + folder.replace("/", "."))
    return " ".join((module.__doc__ or "").split())


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_that_a_page_names_is_there(folder: str) -> None:
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", page_of(folder)):
        below = ROOT if "/" in name else ROOT / folder
        assert list(below.rglob(name)), f"{name} is not in {folder}"


@pytest.mark.parametrize("folder", COMPLETE)
def test_a_page_names_every_module(folder: str) -> None:
    page = page_of(folder)
    modules = [path.stem for path in (ROOT / folder).glob("*.py") if path.stem != "__init__"]
    assert [one for one in modules if f"`{one}.py`" not in page and f"`{one}`" not in page] == []
