"""What a seed means: the cluster, the spec, and which faults come when.

Each kind of fault is on or off for a whole seed (swarm testing: A. Groce et al., "Swarm Testing",
ISSTA 2012), because faults of one kind can hide those of another.
"""

from __future__ import annotations

import copy
import errno
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.simulate.disk import Faults
from tests.simulate.features import with_features
from tests.simulate.scenarios import with_scenarios

# Kinds of faults that happen at a moment -> what happens.
EVENTS = {
    "signal": "mpirun gets SIGUSR2, SIGTERM, SIGINT, or SIGINT twice",
    "kill rank": "a rank gets SIGKILL",
    "kill launcher": "mpirun gets SIGKILL",
    "kill all": "all ranks get SIGKILL at once",
    "die in collective": "a rank dies before, in or right after one of its next collectives",
    "die in write": "a rank dies before one of its next changes of the disk",
    "crash node": "a node crashes: its processes, its shared memory, what it has not synced",
    "crash in write": "a node crashes before one of the next changes of the disk by its rank",
    "crash storage": "all crash, and the disk loses what was not synced, changes of folders too",
    "walltime": "the launch has a walltime, from some milliseconds on",
    "freeze": "a rank does nothing for a while",
    "suspend": "a launch does nothing, until others may take it for dead; one of them may try to",
    "clock jump": "the time of day of a node jumps by up to an hour, back or forth",
    "second launch": "the same command is given on another node",
    "commands": "somebody adds, clones, stops, pauses, resumes or skips networks, or frees nodes",
    "die in phase": "a rank of a group dies in one of the phases of the group",
    "known death": "a rank of a group dies in one of its phases, and rank 0 knows it at once",
    "death before report": "a rank of a group dies, and rank 0 knows it before a report of it",
    "signal before report": "mpirun gets SIGUSR2 while a group reports, before the report arrives",
    "late report": "a report of a group arrives seconds later, or when another group has ended",
    "die in message": "a rank dies right after one of its next messages",
    "crash storage in write": "as crash storage, before one of the next writes of a rank",
    "damage": "a checkpoint is damaged or deleted before a launch",
    "edit code": "a file of a model function is edited before a launch, and restored after it",
    "give verdict": "somebody stops, pauses or resumes a network",
    "lazy policy": "a policy of the user lets nothing run",
    "lose best": "the best checkpoint of a finished network is deleted before a launch",
    "ask too much": "a spec wants more GPUs or samples than there are, for one launch",
}
# Kinds that only scenarios have (tests/simulate/scenarios.py).
_OF_SCENARIOS = (
    "die in phase",
    "known death",
    "death before report",
    "signal before report",
    "late report",
    "die in message",
    "crash storage in write",
    "damage",
    "edit code",
    "give verdict",
    "lazy policy",
    "lose best",
    "ask too much",
)
# Kinds of faults that last -> what they do.
CONDITIONS = {
    "slow ranks": "some ranks need longer for everything",
    "late messages": "many messages and collectives take twenty times as long",
    "disk errors": "calls that change something fail: EIO, ESTALE, ENOSPC, EDQUOT",
    "read errors": "calls that read fail: EIO or ESTALE",
    "full disk": "for a while no call gets more space",
    "quota": "for a while the run may take few bytes more; deleted files free some",
    "slow disk": "some calls take up to seconds",
    "lag": "other nodes list new names late, and removed ones for longer",
    "clocks": "the times of day of nodes differ",
    "bad searchers": "searchers raise, hang, are slow, forget, propose or answer what is invalid",
    "bad samples": "the source is slow, or raises errors that pass",
}
KINDS = (*EVENTS, *CONDITIONS)
# The spec of every case, to which _content adds.
_PLAIN: dict[str, Any] = {
    "seed": 5,
    "models": [],
    "max_deaths": 99,
    "data": {
        "source": "tests.sources:numbered",
        "transforms": [
            {"center_crop": {"size": [4, 4]}},
            "tests.sources:noise",
            {"scale": {"mean": 0.5, "std": 0.5}},
        ],
    },
    "train": {"optimizer": {"learning_rate": 0.02, "momentum": 0.5}},
    "schedule": {},
    "checkpoint": {},
    "resources": {"engine": "numpy", "preprocessors": 1},
}
POLICIES = ("adaptive", "baseline", "local", "global", "elastic", "homogeneous")


@dataclass(frozen=True)
class Event:
    """Something that happens to the cluster.

    Attributes:
        at_s: virtual seconds after the start of the launch that runs then, or after its end
            has begun.
        kind: one of :data:`EVENTS`.
        target: a random number that chooses a rank or a node.
        amount: a random number in [0, 1), for instance a duration.
        at_end: whether it happens while the launch ends.
    """

    launch: int
    at_s: float
    kind: str
    target: int
    amount: float
    at_end: bool = False


@dataclass(frozen=True)
class Case:
    """A simulated run.

    Attributes:
        nodes, ranks_per_node: the allocation of each launch.
        fault_tolerant: whether mpirun runs with ULFM.
        content: the spec, without its output.
        kinds: the kinds of faults.
        events: the faults.
        launches: number of launches that may meet faults; later ones meet none.
        delay_s, late: latency of messages, and share of late ones.
        stretch: longest factor on a poll's pause.
        disk: what the disk does during launches with faults.
        slow: slowest factor of a rank.
        offsets: offsets of the clocks of nodes, in seconds.
        side_by_side: number of launches that share the run (``--share-run``).
        cores: cores of a node; 0 for one if networks share a device, and else for many.
        watts: power that each trainer takes, by a counter of its own; 0 for no counters.
        gpus: name of the GPUs that a driver lists on each node; empty for no driver.
        terminal: whether the user watches the launches in a terminal.
    """

    seed: int
    nodes: int
    ranks_per_node: int
    fault_tolerant: bool
    content: dict[str, Any]
    kinds: tuple[str, ...]
    events: tuple[Event, ...] = ()
    launches: int = 3
    delay_s: float = 1e-3
    late: float = 0.1
    stretch: float = 8.0
    disk: Faults = field(default_factory=Faults)
    slow: float = 1.0
    offsets: tuple[float, ...] = ()
    side_by_side: int = 1
    cores: int = 0
    watts: float = 0.0
    gpus: str = ""
    terminal: bool = False

    @property
    def ranks(self) -> int:
        """Number of ranks of a launch."""
        return self.nodes * self.ranks_per_node

    def to_text(self, failure: str = "") -> str:
        """Return the case as JSON of few lines, without what is as in an undisturbed run.

        Args:
            failure: what went wrong, for readers.
        """
        plain = {**asdict(Case(0, 1, 1, False, {}, ())), "content": _PLAIN}
        values = _difference(asdict(self), plain)
        if failure:
            values["failure"] = failure
        lines = []
        for key, value in values.items():
            text = json.dumps(value)
            if key == "events":
                text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
            lines.append(f' "{key}": {text}')
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_text(cls, text: str) -> Case:
        """Return the case of :meth:`to_text`."""
        plain: dict[str, Any] = {
            "seed": 0,
            "nodes": 1,
            "ranks_per_node": 1,
            "fault_tolerant": False,
            "kinds": (),
        }
        values = {**plain, **json.loads(text)}
        values.pop("failure", None)
        content = _merged(_PLAIN, values.pop("content", {}))
        disk = dict(values.pop("disk", {}))
        for key in ("errors", "reads"):
            disk[key] = {int(number): rate for number, rate in disk.get(key, {}).items()}
        for key in ("fills", "quotas"):
            disk[key] = tuple(map(tuple, disk.get(key, ())))
        events = tuple(Event(**event) for event in values.pop("events", ()))
        offsets = tuple(values.pop("offsets", ()))
        return cls(**values, content=content, events=events, offsets=offsets, disk=Faults(**disk))


def _difference(values: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Return the values that differ from plain ones, also within mappings."""
    different = {}
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(plain.get(key), dict):
            value = _difference(value, plain[key])
            if value:
                different[key] = value
        elif key not in plain or value != plain[key]:
            different[key] = value
    return different


def _merged(plain: dict[str, Any], different: dict[str, Any]) -> dict[str, Any]:
    """Return plain values and what differs from them."""
    merged = dict(plain)
    for key, value in different.items():
        both = isinstance(value, dict) and isinstance(plain.get(key), dict)
        merged[key] = _merged(plain[key], value) if both else value
    return merged


def make_case(seed: int) -> Case:
    """Return the case of a seed."""
    draw = random.Random(f"case {seed}")
    drawn = [kind for kind in KINDS if kind not in _OF_SCENARIOS]
    kinds = tuple(kind for kind in drawn if draw.random() < 0.2)
    if draw.random() < 0.15:
        kinds = ()
    nodes = draw.choice((1, 1, 1, 2, 3))
    ranks_per_node = draw.choice((1, 2, 3, 3, 4)) if nodes == 1 else draw.choice((2, 3, 4))
    launches = draw.randint(1, 4)
    content = _content(draw, nodes, ranks_per_node, kinds)
    searches = any("search" in model for model in content["models"])
    case = Case(
        seed,
        nodes,
        ranks_per_node,
        nodes * ranks_per_node > 1 and draw.random() < 0.4,
        content,
        kinds,
        _events(draw, kinds, launches),
        launches if kinds else 0,
        late=draw.choice((0.05, 0.3)) if "late messages" in kinds else 0.01,
        delay_s=draw.choice((1e-5, 1e-3, 1e-2)),
        stretch=draw.choice((2.0, 8.0, 30.0)),
        slow=draw.uniform(2, 20) if "slow ranks" in kinds else 1.0,
        offsets=tuple(draw.uniform(-100, 100) for _ in range(10)) if "clocks" in kinds else (),
        side_by_side=1 if nodes > 2 or searches else draw.choice((1, 1, 1, 2, 3)),
        disk=_disk(draw, kinds),
    )
    content = with_features(seed, content, case.side_by_side > 1)
    return with_scenarios(_with_deaths(replace(case, content=content)))


# Numbers of the phases in which ranks die: training, pausing, paused, waiting, stopping, failed.
_PHASES = (1, 1, 2, 3, 4, 4, 6, 6, 7)


def _with_deaths(case: Case) -> Case:
    """Return a case in which, for some seeds, many ranks die and the launch survives."""
    draw = random.Random(f"deaths {case.seed}")
    # The first rank of each node prepares samples, and each other one is a device.
    is_plain = case.content["resources"] == {"engine": "numpy", "preprocessors": case.nodes}
    if draw.random() > 0.08 or case.ranks < 3 or not is_plain:
        return case
    kind = "die in phase" if case.nodes == 1 else "kill rank"
    launches = max(case.launches, 2)
    events = tuple(
        Event(launch, draw.choice((0.0, 0.2, 1.0)) * draw.random(), kind, number, draw.random())
        for launch in range(launches)
        for number in (draw.choice(_PHASES) for _ in range(3))
    )
    # SIGUSR2, so that groups pause and stop
    events += tuple(Event(launch, 2 * draw.random(), "signal", 0, 0.0) for launch in (0, 1))
    # Groups of several ranks, whose messages arrive after the news of a death.
    content = copy.deepcopy(case.content)
    content["schedule"] = {"policy": "adaptive"}
    content["data"]["path"] = str(max(60, int(content["data"]["path"])))
    for model in content["models"]:
        if isinstance(model["train"]["batch"]["size"], list):
            return case
        trainers = case.ranks - case.nodes
        model["gpus"] = [min(2, trainers), trainers]
    return replace(
        case,
        fault_tolerant=True,
        content=content,
        events=case.events + events,
        kinds=tuple(dict.fromkeys((*case.kinds, kind, "signal"))),
        launches=launches,
        delay_s=1e-2,
        late=0.3,
    )


def _content(
    draw: random.Random, nodes: int, ranks_per_node: int, kinds: tuple[str, ...]
) -> dict[str, Any]:
    ranks = nodes * ranks_per_node
    samples = draw.randint(4, 40)
    preprocessors = nodes
    if ranks_per_node > 2 and draw.random() < 0.1:
        preprocessors = nodes * draw.randint(2, ranks_per_node - 1)
    trainers = max(1, ranks - preprocessors)
    models: list[dict[str, Any]] = []
    for index in range(draw.randint(1, 4)):
        minimum = draw.randint(1, min(2, trainers))
        models.append(
            {
                "family": "softmax",
                "name": f"n{index}",
                "gpus": [minimum, draw.randint(minimum, trainers)],
                "train": {
                    "batch": {"size": draw.randint(2, max(2, samples // 2))},
                    "stopping": {"max_epochs": draw.randint(1, 4)},
                },
            }
        )
    if draw.random() < 0.3 or "bad searchers" in kinds:
        models.append(_search(draw, samples, kinds))
    cache: dict[str, Any] = draw.choice(
        (
            {"cache": "none"},
            {"cache": "memory"},
            {"cache": "file"},
            {"order": "ring", "shards": draw.randint(2, 9)},
        )
    )
    source = {"source": "tests.simulate.sources:flaky"} if "bad samples" in kinds else {}
    different = {
        "models": models,
        "data": {"path": str(samples), **cache, **source},
        "schedule": {"policy": draw.choice(POLICIES)},
        "checkpoint": {
            "every": draw.choice((0.02, 0.1, 60.0)),
            "keep": draw.choice(("best+last", "last")),
        },
        **({"prune": _prune(draw)} if draw.random() < 0.5 else {}),
        "resources": {"preprocessors": "auto" if ranks == 1 else preprocessors},
    }
    return _merged(_PLAIN, different)


def _search(draw: random.Random, samples: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Return an entry whose networks a searcher proposes."""
    search = {
        "sampler": draw.choice(("random", "tests.fleet.search.searchers:Careful")),
        "max_trials": draw.randint(1, 6),
        "max_concurrent": draw.randint(1, 3),
    }
    if "bad searchers" in kinds:
        search["sampler"] = "tests.simulate.searchers:Unreliable"
        search["timeout"] = 5.0
        search["options"] = {
            "faults": draw.sample(SEARCHER_FAULTS, draw.randint(1, 3)),
            "share": draw.choice((0.1, 0.4)),
        }
    return {
        "family": "softmax",
        "name": "s",
        "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.3, "log": True}},
        "search": search,
        "train": {
            "batch": {"size": draw.randint(2, max(2, samples // 2))},
            "stopping": {"max_epochs": 3},
        },
    }


# What a searcher may do wrong; see :class:`tests.simulate.searchers.Unreliable`.
SEARCHER_FAULTS = (
    "raise",
    "exit",
    "hang",
    "slow",
    "nan",
    "outside",
    "repeat",
    "nonsense",
    "none",
    "forget",
    "fail to start",
)


def _prune(draw: random.Random) -> dict[str, Any]:
    return draw.choice(
        (
            {"rule": "asha", "min_epochs": 1, "factor": 2},
            {"rule": "hyperband", "min_epochs": 1, "factor": 2},
            {"rule": "median", "min_epochs": 1, "min_trials": 2},
            {"rule": "auto"},
            {"rule": "asha", "min_epochs": 1, "synchronous": True},
        )
    )


def _events(draw: random.Random, kinds: tuple[str, ...], launches: int) -> tuple[Event, ...]:
    events = []
    for launch in range(launches):
        for kind in kinds:
            if kind in EVENTS and draw.random() < 0.6:
                at_end = draw.random() < 0.15
                longest_s = draw.choice((0.002, 0.05) if at_end else (0.005, 0.1, 0.5, 1.0, 2.0))
                events.append(
                    Event(
                        launch,
                        longest_s * draw.random(),
                        kind,
                        draw.randrange(1000),
                        draw.random(),
                        at_end,
                    )
                )
    return tuple(events)


def _disk(draw: random.Random, kinds: tuple[str, ...]) -> Faults:
    faults = Faults()
    rate = draw.choice((0.001, 0.01))
    if "disk errors" in kinds:
        numbers = draw.sample((errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT), 2)
        faults = replace(faults, errors={number: rate for number in numbers})
    if "read errors" in kinds:
        faults = replace(faults, reads={draw.choice((errno.EIO, errno.ESTALE)): rate})
    if "slow disk" in kinds:
        faults = replace(faults, slow=draw.choice((0.01, 0.1)), slow_s=draw.choice((0.05, 3.0)))
    if "lag" in kinds:
        faults = replace(faults, lag_s=draw.choice((0.05, 1.0)))
    if "full disk" in kinds:
        begin = draw.random()
        faults = replace(faults, fills=((begin, begin + draw.choice((0.5, 5.0, 40.0))),))
    if "quota" in kinds:
        begin = draw.random()
        spare = draw.choice((0, 5_000, 50_000))
        faults = replace(faults, quotas=((begin, begin + draw.choice((0.5, 5.0, 40.0)), spare),))
    return faults


def smaller(case: Case) -> list[tuple[str, Callable[[], Case]]]:
    """Return simpler cases, the simplest first: (what is dropped, the case)."""
    content = case.content
    models = content["models"]
    cases: list[tuple[str, Callable[[], Case]]] = []

    def offer(dropped: str, **changes: Any) -> None:
        cases.append((dropped, lambda: replace(case, **changes)))

    if case.disk != Faults():
        offer("all faults of the disk", disk=Faults())
        no_faults = asdict(Faults())
        for key, value in asdict(case.disk).items():
            if value != no_faults[key]:
                offer(f"disk.{key}", disk=replace(case.disk, **{key: no_faults[key]}))
    for index in range(len(case.events)):
        remaining = case.events[:index] + case.events[index + 1 :]
        offer(f"event {case.events[index].kind}", events=remaining)
    if case.launches > 1:
        offer(
            "the last launch with faults",
            launches=case.launches - 1,
            events=tuple(event for event in case.events if event.launch < case.launches - 1),
        )
    if case.nodes > 1:
        offer("a node", nodes=case.nodes - 1)
    if case.ranks_per_node > (1 if case.nodes == 1 else 2):
        offer("a rank", ranks_per_node=case.ranks_per_node - 1)
    if case.side_by_side > 1:
        offer("a launch beside", side_by_side=case.side_by_side - 1)
    for key in ("prune", "profile", "keep_open", "walltime"):
        if key in content:
            offer(key, content={name: content[name] for name in content if name != key})
    for path in _OPTIONAL:
        if _has(content, path):
            offer(".".join(path), content=_without(content, path))
    for index, model in enumerate(models):
        for path in _OPTIONAL_OF_MODELS:
            if _has(model, path):
                fewer = [*models[:index], _without(model, path), *models[index + 1 :]]
                offer(f"{path[-1]} of {model['name']}", content={**content, "models": fewer})
    if content["data"]["source"] in ("tests.simulate.sources:flaky", "tests.sources:partly_bad"):
        data = {**content["data"], "source": _PLAIN["data"]["source"]}
        offer("the source", content={**content, "data": data})
    if content["resources"]["engine"] != "numpy":
        resources = {**content["resources"], "engine": "numpy"}
        offer("the engine", content={**content, "resources": resources})
    if case.fault_tolerant:
        offer("fault tolerance", fault_tolerant=False)
    for index in range(len(models)):
        if len(models) > 1:
            offer(
                f"network {models[index]['name']}",
                content={**content, "models": models[:index] + models[index + 1 :]},
            )
        epochs = models[index]["train"]["stopping"]["max_epochs"]
        if epochs > 1:
            stopping = {**models[index]["train"]["stopping"], "max_epochs": epochs - 1}
            train = {**models[index]["train"], "stopping": stopping}
            fewer = [*models[:index], {**models[index], "train": train}, *models[index + 1 :]]
            offer(f"an epoch of {models[index]['name']}", content={**content, "models": fewer})
        if models[index].get("gpus", [1, 1]) != [1, 1]:
            alone = [*models[:index], {**models[index], "gpus": [1, 1]}, *models[index + 1 :]]
            offer(f"gpus of {models[index]['name']}", content={**content, "models": alone})
    if case.kinds:
        offer("names of kinds", kinds=())
    if case.late > 0.01:
        offer("late messages", late=0.01)
    if case.slow > 1:
        offer("slow ranks", slow=1.0)
    if any(case.offsets):
        offer("clock offsets", offsets=(0.0,) * len(case.offsets))
    for key, plain in (("checkpoint", {}), ("schedule", {})):
        if content[key] != plain:
            offer(key, content={**content, key: plain})
    return cases


# Keys of a spec, and of an entry, that a smaller case may lack.
_OPTIONAL = (
    ("schedule", "rates"),
    ("data", "folds"),
    ("data", "test"),
    ("data", "shared_memory"),
    ("data", "cache"),
    ("checkpoint", "quota"),
    ("resources", "networks_per_gpu"),
)
_OPTIONAL_OF_MODELS = (
    ("data",),
    ("repeats",),
    ("search", "repeats"),
    ("search", "options", "inherits"),
    ("search", "options", "pauses"),
    ("train", "batch", "when_scaled"),
    ("train", "stopping", "patience"),
    ("train", "stopping", "stop_at"),
    ("train", "stopping", "max_time"),
)


def _has(content: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Return True if a mapping has a key, given by its path."""
    for key in path[:-1]:
        content = content.get(key, {})
    return path[-1] in content


def _without(content: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return a mapping without a key, given by its path."""
    first, *deeper = path
    if not deeper:
        return {key: value for key, value in content.items() if key != first}
    return {**content, first: _without(content[first], tuple(deeper))}
