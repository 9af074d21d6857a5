"""Write a spec to begin with, and say how to run it.

  fleet new digits                 a folder with the demo: ten networks on handwritten digits
  fleet new images photos          a search over networks for a folder of images
  fleet new table patients.csv     a search over networks for the rows of a table
  fleet new torch photos           the same for images or a table, with your own PyTorch modules

The command looks at the data and writes a spec that `fleet check` accepts into the current folder.
The spec is named like the data. Existing files are never overwritten.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import unicodedata
from collections.abc import Mapping
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

from fleet.commands.drafts import Draft, default_engine, draft_images, draft_table
from fleet.commands.output import show
from fleet.errors import UserError
from fleet.storage.files import storage_errors
from launch.errors import did_you_mean

_LONGEST_NAME = 60


class Kind(StrEnum):
    """What a spec is for."""

    DIGITS = "digits"
    IMAGES = "images"
    TABLE = "table"
    TORCH = "torch"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "kind",
        metavar=f"{{{','.join(Kind)}}}",
        help="what the spec is for: the demo, images, a table, or your own PyTorch modules",
    )
    parser.add_argument(
        "path",
        nargs="?",
        help="a folder of images or a table; for digits the folder to make (digits)",
    )
    parser.add_argument(
        "--target",
        metavar="COLUMN",
        help="the column that networks of a table predict (default: one named target, label, "
        "class or y, or else the last one)",
    )


def run(args: argparse.Namespace) -> None:
    """Write the spec, and print what it holds."""
    if args.kind not in tuple(Kind):
        raise UserError(
            f"unknown kind {args.kind!r}{did_you_mean(args.kind, Kind)}; {_like(args.kind)}"
        )
    if args.kind == Kind.DIGITS:
        if args.target is not None:
            raise UserError("--target is for tables")
        if args.path is not None and Path(args.path).suffix in (".yaml", ".yml"):
            raise UserError(f"{args.path}: fleet new digits makes a folder, and digits.yaml in it")
        files = _demo_files(Path(args.path or "digits"))
        summary = "ten networks of four families on 1,797 images of handwritten digits"
    else:
        if args.path is None:
            raise UserError(f"fleet new {args.kind} needs the path of the data")
        draft = _draft(args.kind, args.path, args.target)
        files = _draft_files(draft, args.path)
        summary = draft.summary
    _write(files)
    spec = next(path for path in files if path.suffix == ".yaml")
    show(
        args,
        lambda: {"spec": str(spec), "files": [str(path) for path in files], "summary": summary},
        lambda: print(_next_steps(files, spec, summary)),
    )


def _like(path: str) -> str:
    """Return the command that a user probably meant who gave a path only."""
    if os.path.isdir(path) and _holds_images(path):
        return f"fleet new images {shlex.quote(path)} begins with a folder of images"
    if os.path.exists(path):
        return f"fleet new table {shlex.quote(path)} begins with a table"
    return f"write fleet new {' | '.join(Kind)}, and the path of the data"


def _draft(kind: str, path: str, target: str | None) -> Draft:
    is_own = kind == Kind.TORCH
    engine = str(Kind.TORCH) if is_own else default_engine()
    if kind == Kind.TABLE or (is_own and not _holds_images(path)):
        return draft_table(path, target, engine, is_own)
    if target is not None:
        raise UserError("--target is for tables")
    return draft_images(path, engine, is_own)


def _holds_images(path: str) -> bool:
    """Return True if a path is a folder, but not one of the files of a table."""
    if not os.path.isdir(path):
        return False
    return not any(name.lower().endswith((".csv", ".parquet")) for name in os.listdir(path))


def _draft_files(draft: Draft, path: str) -> Mapping[Path, str]:
    stem = Path(os.path.abspath(path)).name.partition(".")[0]
    # The run's folder has this name, too, in letters that all file systems have.
    letters = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    name = re.sub(r"[^\w-]", "_", letters).strip("_-")[:_LONGEST_NAME] or "networks"
    spec = Path(f"{name}.yaml")
    text = draft.text(name, str(spec))
    if not draft.module:
        return {spec: text}
    module = re.sub(r"\W", "_", f"{name}_networks")
    if not module.isidentifier():
        module = f"networks_{module}"
    return {
        spec: text.replace("{module}", module),
        Path(f"{module}.py"): draft.module.replace("{file}", str(spec)),
    }


def _demo_files(folder: Path) -> Mapping[Path, str]:
    text = resources.files("fleet").joinpath("data/digits.yaml").read_text(encoding="utf-8")
    if engine := default_engine():
        text = text.replace("resources:\n", f"resources:\n  engine: {engine}\n")
    return {folder / "digits.yaml": text}


def _write(files: Mapping[Path, str]) -> None:
    """Write new files.

    Raises:
        UserError: one of them exists.
    """
    for path in files:
        if os.path.lexists(path):
            raise UserError(
                f"{path} exists, and fleet new overwrites nothing; rename it, or go to another "
                "folder"
            )
    for path, text in files.items():
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)


def _next_steps(files: Mapping[Path, Any], spec: Path, summary: str) -> str:
    lines = [f"wrote {' and '.join(map(str, files))}: {summary}"]
    if str(spec.parent) != ".":
        lines.append(f"  cd {spec.parent}")
    lines += [
        f"  fleet check {spec.name}     # builds each network, and lists all mistakes",
        f"  fleet run {spec.name}",
    ]
    return "\n".join(lines)
