r"""Draw the screen of a command as an SVG picture, as a terminal of 80 x 24 shows it.

    pip install pyte
    python tools/record_screen.py docs/figures/screen.svg --until "[567] done, 2 training" -- \
        fleet run examples/digits.yaml -n 5

The picture shows the first screen that matches the pattern, or the last one; the command then runs
to its end. It is drawn with the fonts of the reader, and loads nothing.
"""

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

# The picture of rich without its fonts, which would be loaded from elsewhere.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas,
  "DejaVu Sans Mono", monospace; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font: bold 18px system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def record(command: list[str], columns: int, lines: int, until: str) -> pyte.Screen:
    """Run a command on a terminal, and return the first screen that matches, or the last one."""
    screen, is_recorded = pyte.Screen(columns, lines), False
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    while True:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                output = os.read(terminal, 65536)
            except OSError:  # the command has ended
                break
            if not is_recorded:
                stream.feed(output)
        elif not is_recorded:  # between two drawings
            is_recorded = bool(re.search(until, "\n".join(screen.display)))
    os.waitpid(child, 0)
    return screen


def as_text(screen: pyte.Screen) -> list[Text]:
    """Return the lines of a screen with their colors."""
    return [
        Text.assemble(
            *(
                (cell.data, _style(cell))
                for cell in (screen.buffer[line][column] for column in range(screen.columns))
            )
        )
        for line in range(screen.lines)
    ]


def _style(cell: pyte.screens.Char) -> Style:
    return Style(
        color=_color(cell.fg), bgcolor=_color(cell.bg), bold=cell.bold, reverse=cell.reverse
    )


def _color(name: str) -> str | None:
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    name = "yellow" if name == "brown" else name  # as pyte calls it
    return re.sub(r"^bright(?=\w)", "bright_", name)


def main() -> None:
    """Record a command, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    parser.add_argument("--until", default="(?!)", help="a regular expression")
    parser.add_argument("--size", default="80x24", help="columns x lines (default: 80x24)")
    parser.add_argument("command", nargs="+", help="the command, after --")
    arguments = parser.parse_args()
    columns, lines = map(int, arguments.size.split("x"))
    screen = record(arguments.command, columns, lines, arguments.until)
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True)
        for line in as_text(screen):
            console.print(line, no_wrap=True, overflow="crop", end="\n")
    console.save_svg(str(arguments.picture), title=" ".join(arguments.command), code_format=SVG)
    sys.stderr.write("\n".join(screen.display) + "\n")


if __name__ == "__main__":
    main()
