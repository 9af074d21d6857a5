"""Print the JSON Schema of a spec, with which editors complete and check YAML.

    fleet schema > fleet.schema.json

In VS Code with the YAML extension, the first line of a spec then says
# yaml-language-server: $schema=fleet.schema.json
"""

from __future__ import annotations

import argparse

from fleet.errors import ExitStatus
from fleet.show import print_json
from fleet.spec import json_schema


def configure(parser: argparse.ArgumentParser) -> None:
    """There are no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    print_json(json_schema())
    return ExitStatus.OK
