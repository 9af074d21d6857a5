"""Print the JSON Schema of a spec, with which editors complete and check YAML.

    fleet schema > fleet.schema.json
    fleet schema --markdown            all keys as a Markdown page: docs/spec.md

For VS Code with the YAML extension, write in the first line of a spec:
# yaml-language-server: $schema=fleet.schema.json
"""

from __future__ import annotations

import argparse

from fleet.commands.output import print_json
from fleet.spec import json_schema
from fleet.spec.documentation import page

HAS_JSON = False  # it prints nothing else


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--markdown", action="store_true", help="print the keys as a Markdown page")


def run(args: argparse.Namespace) -> None:
    """Print the schema, or the page."""
    if args.markdown:
        print(page(), end="")
    else:
        print_json(json_schema())
