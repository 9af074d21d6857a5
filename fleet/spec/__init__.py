"""Read the spec of a run, from YAML to networks with all their settings.

Of the other modules of ``fleet`` it imports only errors, units, terminal, plugins and vocabulary.
"""

from fleet.spec.data import Data, EntryData, Pad, Target
from fleet.spec.dimensions import Choices, Prior, Range
from fleet.spec.documentation import json_schema
from fleet.spec.resolve import allow_imports_beside, load, parse
from fleet.spec.schema import (
    Checkpoint,
    Document,
    ModelEntry,
    NetworkSpec,
    Profile,
    Resources,
    Schedule,
    Spec,
    with_cache,
    with_output,
)
from fleet.spec.search import Budget, Objective, Prune, Search
from fleet.spec.train import Batch, Optimizer, Start, Stopping, Train
from fleet.spec.yaml_file import dump, read_yaml

__all__ = [
    "Batch",
    "Budget",
    "Checkpoint",
    "Choices",
    "Data",
    "Document",
    "EntryData",
    "ModelEntry",
    "NetworkSpec",
    "Objective",
    "Optimizer",
    "Pad",
    "Prior",
    "Profile",
    "Prune",
    "Range",
    "Resources",
    "Schedule",
    "Search",
    "Spec",
    "Start",
    "Stopping",
    "Target",
    "Train",
    "allow_imports_beside",
    "dump",
    "json_schema",
    "load",
    "parse",
    "read_yaml",
    "with_cache",
    "with_output",
]
