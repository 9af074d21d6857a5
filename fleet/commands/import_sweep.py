"""Write the spec of a search that another tool describes or has begun.

  fleet import sweep.yaml                      a W&B sweep, or a Determined experiment
  fleet import study.log --to spec.yaml        an Optuna study: a journal, or an SQLite database
  fleet import project --to spec.yaml          the folder of a Keras Tuner project

Add the data and the network to the spec. Trials of a study or a project are written beside it, to
spec.trials.json, which `search.warm_start` names: the sampler receives them first. Comments in the
spec, and the lines on standard error, list what was changed and what a spec cannot say.

A parameter with an evident name, such as lr or batch_size, sets that key of `train`; all others are
arguments of the network. --map eta=train.optimizer.learning_rate chooses another key, and
--map lr=lr keeps an argument.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fleet.arguments import new_file, written_as
from fleet.commands.output import result_output, show
from fleet.errors import UserError
from fleet.storage.files import atomic_write, storage_errors
from fleet.storage.trials_file import write_trials_file
from fleet.sweeps.formats import read_sweep
from fleet.sweeps.settings import parse_mapping, with_spec_keys
from fleet.sweeps.spec_file import SpecDraft, draft_spec, spec_text
from launch.errors import pluralize


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="FILE", help="file or folder of the other tool")
    parser.add_argument(
        "--to", type=new_file, metavar="SPEC", help="spec to write; default: standard output"
    )
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument("--study", metavar="NAME", help="Optuna study, if there are several")
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        type=written_as(parse_mapping),
        metavar="OLD=NEW",
        help="key of the spec that a parameter sets; repeat it for several parameters",
    )


def run(args: argparse.Namespace) -> None:
    """Write the spec and the trials, and list what was changed or left out."""
    sweep, source = read_sweep(args.source, args.study)
    trials_path = None if args.to is None else args.to.with_suffix(".trials.json")
    draft = draft_spec(
        with_spec_keys(sweep, dict(args.map)),
        source,
        None if trials_path is None else trials_path.name,
    )
    text = spec_text(draft, args.command_line)
    if args.to is not None and trials_path is not None:
        files = [args.to] if draft.trials is None else [args.to, trials_path]
        existing = [file for file in files if file.exists()]
        if existing and not args.force:
            raise UserError(f"{existing[0]} exists; use --force to replace it")
        with storage_errors(args.to):
            args.to.parent.mkdir(parents=True, exist_ok=True)
        if draft.trials is not None:
            write_trials_file(trials_path, draft.trials)
        with atomic_write(args.to) as file:
            file.write(text)
    show(args, lambda: _record(args.to, trials_path, draft), lambda: _print(args, text, draft))


def _record(path: Path | None, trials_path: Path | None, draft: SpecDraft) -> dict[str, object]:
    trials = draft.trials
    return {
        "format": draft.sweep.kind,
        "name": draft.sweep.name,
        "spec": draft.content,
        "path": None if path is None else str(path),
        "trials": 0 if trials is None else len(trials.trials),
        "trials_path": None if trials is None or trials_path is None else str(trials_path),
        "changed": [note._asdict() for note in draft.sweep.changed],
        "left_out": [note._asdict() for note in draft.sweep.left_out],
    }


def _print(args: argparse.Namespace, text: str, draft: SpecDraft) -> None:
    count = 0 if draft.trials is None else len(draft.trials.trials)
    if args.to is None:
        print(text, end="", file=result_output())
        if count:
            print(
                f"{pluralize(count, 'prior trial')} not written; --to SPEC writes them beside it",
                file=sys.stderr,
            )
    else:
        trials = f", and {pluralize(count, 'prior trial')} beside it" if count else ""
        print(f"{args.to}: {draft.sweep.kind}{trials}; add the data and the network")
    for note in draft.sweep.changed:
        print(f"changed {note}", file=sys.stderr)
    for note in draft.sweep.left_out:
        print(f"not said {note}", file=sys.stderr)
