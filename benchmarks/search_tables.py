"""Compare pruning rules on recorded learning curves (`search.py --curves`)."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from search_curves import Search
from search_files import Task, TaskResult, read_tasks, simulate_task
from search_programs import FleetSearch, OptunaSearch
from versus import install_ray

from fleet.search.searcher import make_searcher
from fleet.spec.dimensions import Range
from fleet.spec.search import RULES, Prune
from fleet.spec.space import Space

FOLDER = Path(__file__).parent
HINDSIGHT = "in hindsight"
# What an expert who knew the curves could have chosen.
FIXED_RULE: dict[str, Any] = {"rule": "asha"}
OTHER_RULES: Sequence[dict[str, Any]] = [
    {"rule": "asha", "on_fail": "stop"},
    {"rule": "hyperband"},
    {"rule": "median"},
    {"rule": "learning_curve"},
]
FIXED_EPOCHS = (1, 3, 5, 10, 20)


@dataclass(frozen=True)
class Row:
    """What a rule comes to on the tasks of a file.

    Attributes:
        curves: name of the file.
        rule: the rule.
        tasks: number of tasks.
        near: tasks on which it came within 1 % of the best network.
        times_fewer: GPU hours of training all networks to their ends, divided by its own; the
            median over tasks.
        best_median, best_worst: its best value as a share of the best one.
        until_near: share of the GPU hours of training all until it was near; the median over the
            tasks on which it was; None without one.
    """

    curves: str
    rule: str
    tasks: int
    near: int
    times_fewer: float
    best_median: float
    best_worst: float
    until_near: float | None

    @classmethod
    def of(cls, curves: str, rule: str, results: Sequence[TaskResult]) -> Row:
        """Summarize the results of all tasks."""
        near = [result.until_near for result in results if result.until_near is not None]
        return cls(
            curves,
            rule,
            len(results),
            len(near),
            round(statistics.median(1 / result.share for result in results), 3),
            round(statistics.median(result.best for result in results), 5),
            round(min(result.best for result in results), 5),
            round(statistics.median(near), 4) if near else None,
        )


def make_fleet_search(task: Task, gpus: int, **prune: Any) -> Search:
    """Return a search by FLEET's search controller that proposes the networks of a task in order.

    Args:
        task: the networks.
        gpus: number of GPUs.
        prune: as in a spec.
    """
    networks = len(task.curves)
    space: Space = {"network": Range(0, max(1, networks - 1), integer=True)}
    return FleetSearch(
        Prune(**prune),
        make_searcher("grid", space, 0, "maximize", {}),
        networks,
        gpus,
        [len(curve.values) for curve in task.curves],
        space,
        task.mode,
    )


def make_optuna_search(task: Task, gpus: int, make_pruner: Callable[[], Any]) -> Search:
    """Return a search by Optuna's interface with the networks of a task in order."""
    import optuna

    sampler = optuna.samplers.RandomSampler(seed=0)
    return OptunaSearch(task.name, sampler, make_pruner(), len(task.curves))


def fleet_searches() -> dict[str, Callable[[Task, int], Search]]:
    """Return a search for each rule that prunes by itself, with its defaults."""
    return {
        name: partial(make_fleet_search, rule=name) for name, rule in RULES.items() if rule.compares
    }


def optuna_searches(tasks: Iterable[Task]) -> dict[str, Callable[[Task, int], Search]]:
    """Return a search for each pruner of Optuna that is compared, with its defaults.

    Wilcoxon's test pairs the values of two networks, so their epochs have to mean the same.
    """
    try:
        import optuna
    except ImportError:
        skip("Optuna", "it is not installed")
        return {}
    names = ["SuccessiveHalving", "Hyperband", "Median"]
    if all(len({len(curve.values) for curve in task.curves}) == 1 for task in tasks):
        names.append("Wilcoxon")
    else:
        skip("Optuna Wilcoxon", "it pairs epochs, and the curves differ in length")
    return {
        f"Optuna {name}": partial(
            make_optuna_search, make_pruner=getattr(optuna.pruners, f"{name}Pruner")
        )
        for name in names
    }


def skip(row: str, reason: str) -> None:
    """Say why a row is left out."""
    print(f"search.py: no row {row}: {reason}", file=sys.stderr)


def run_ray(path: Path, options: Sequence[str], root: Path) -> list[TaskResult] | None:
    """Run Ray's ASHA in its environment; return None if that is impossible."""
    try:
        python = install_ray(root / "build/ray")
        process = subprocess.run(
            [python, FOLDER / "search_ray.py", "--curves", path, *options],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        skip("Ray ASHA", lines[-1] if lines else str(error))
        return None
    return [TaskResult(**result) for result in json.loads(process.stdout.splitlines()[-1])]


def best_fixed(
    tasks: Sequence[Task], gpus: int, rules: Iterable[dict[str, Any]]
) -> tuple[str, list[TaskResult]]:
    """Return the rule and the ``min_epochs`` that would have been best, and its results.

    The best comes near on the most tasks, and of these it takes the fewest GPU hours.
    """
    outcomes = {}
    for prune in rules:
        for epochs in FIXED_EPOCHS:
            settings = {**prune, "min_epochs": epochs}
            written = ", ".join(f"{key}: {value}" for key, value in settings.items())
            outcomes[f"{{{written}}}"] = [
                simulate_task(make_fleet_search(task, gpus, **settings), task, gpus)
                for task in tasks
            ]
    name = max(outcomes, key=lambda name: (_near(outcomes[name]), -_cost(outcomes[name])))
    return name, outcomes[name]


def _near(results: Sequence[TaskResult]) -> int:
    return sum(result.is_near for result in results)


def _cost(results: Sequence[TaskResult]) -> float:
    return statistics.median(result.share for result in results)


def measure_file(
    path: Path,
    limit: int | None,
    networks: int,
    gpus: int,
    seed: int,
    *,
    with_ray: bool,
    with_all_rules: bool,
) -> Iterator[Row]:
    """Yield a row for each rule.

    Args:
        path: the file of curves.
        limit: number of tasks; None for all.
        networks: networks per task; fewer if the task has fewer.
        gpus: number of GPUs, each of which trains one network.
        seed: seed with which networks are drawn.
        with_ray: whether Ray is compared.
        with_all_rules: whether the best fixed ``min_epochs`` is looked for with all rules, not
            with asha only.

    Raises:
        WrongFile: the file holds no curves.
        OSError: it cannot be read.
    """
    name = path.name
    tasks = [task.draw(networks, seed) for task in read_tasks(path)[:limit]]
    warnings.filterwarnings("ignore", module="optuna")  # about NaN, and about trial features
    warnings.filterwarnings("ignore", message="WilcoxonPruner")
    for rule, make in {**fleet_searches(), **optuna_searches(tasks)}.items():
        yield Row.of(name, rule, [simulate_task(make(task, gpus), task, gpus) for task in tasks])
    rules = [FIXED_RULE, *OTHER_RULES] if with_all_rules else [FIXED_RULE]
    settings, results = best_fixed(tasks, gpus, rules)
    yield Row.of(name, f"{settings} {HINDSIGHT}", results)
    if with_ray:
        options = ["--networks", str(networks), "--gpus", str(gpus), "--seed", str(seed)]
        if limit is not None:
            options += ["--tasks", str(limit)]
        ray = run_ray(path, options, FOLDER.parent)
        if ray is not None:
            yield Row.of(name, "Ray ASHA", ray)


def measure_files(paths: Sequence[Path], *arguments: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of all files; see :func:`measure_file`."""
    rows = []
    for path in paths:
        for row in measure_file(path, *arguments, **options):
            print(f"  {row.curves}, {row.rule}: {row.near} of {row.tasks} near", file=sys.stderr)
            rows.append(asdict(row))
    return rows
