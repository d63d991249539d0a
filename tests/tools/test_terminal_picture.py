"""Pictures of terminals: what a command prints, with its colours, and nothing that is loaded from elsewhere."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

from tools.terminal_picture import output, picture


def test_a_command_prints_as_to_a_person() -> None:
    text, code = output([sys.executable, "-c", "import sys; print(sys.stdout.isatty()); sys.exit(3)"])
    assert (text, code) == ("True\n", 3)


def test_the_picture_is_as_wide_as_the_text_and_loads_nothing() -> None:
    narrow, wide = (picture(f"\x1b[32m{'x' * length}\x1b[0m\n", "mptj") for length in (10, 40))
    sizes = [
        [float(part) for part in ElementTree.fromstring(each).attrib["viewBox"].split()] for each in (narrow, wide)
    ]
    assert sizes[0][2] < sizes[1][2]
    assert sizes[0][3] == sizes[1][3]
    assert "x" * 40 in wide
    assert "url(http" not in wide
    assert "@font-face" not in wide
