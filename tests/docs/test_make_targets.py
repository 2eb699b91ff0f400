from __future__ import annotations

import re
import subprocess

from tests.docs.pages import ROOT, all_pages

MAKEFILE = (ROOT / "Makefile").read_text()
PHONY = set(re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[0].split())


def test_every_make_target_has_a_one_line_description() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", MAKEFILE, re.MULTILINE))
    described = set(re.findall(r"^([a-z-]+):[^#\n]*## \S", MAKEFILE, re.MULTILINE))
    assert targets == described == PHONY


def test_make_alone_shows_every_target() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r"^  make ([a-z-]+) +\S", shown, re.MULTILINE)) == PHONY


def test_every_make_command_in_the_pages_exists() -> None:
    for page in all_pages():
        named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE))
        assert named <= PHONY, page.name
