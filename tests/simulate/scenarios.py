"""Situations that random cases hardly ever meet: each changes the cluster, the spec and the faults.

They are drawn apart from the rest of a case, each by itself, so a new one does not change what
other seeds mean.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.simulate import features

if TYPE_CHECKING:
    from tests.simulate.cases import Case

Content = dict[str, Any]
Scenario = Callable[[random.Random, "Case"], "Case"]

_SHARE = 0.012  # of seeds that have a scenario
MODELS = "tests.simulate.models"
ENGINES = "tests.simulate.engines"
_NOISES = ("brisk", "slow")
MOST_SAMPLES_PER_S = 250  # of a network that a searcher may choose


def with_scenarios(case: Case) -> Case:
    """Return a case with the scenario of its seed, if it has any."""
    name = name_of(case.seed)
    return case if name is None else named(name, case.seed, case)


def name_of(seed: int) -> str | None:
    """Return the name of a seed's scenario; None if it has none."""
    for name in SCENARIOS:
        if random.Random(f"is {name} {seed}").random() < _SHARE:
            return name
    return None


def seeds_of_each(count: int) -> list[int]:
    """Return the first seeds of each scenario."""
    missing = dict.fromkeys(SCENARIOS, count)
    seeds: list[int] = []
    for seed in itertools.count():
        name = name_of(seed)
        if name is not None and missing[name]:
            missing[name] -= 1
            seeds.append(seed)
        if not any(missing.values()):
            return seeds
    raise AssertionError("there is no end of seeds")


def named(name: str, seed: int, case: Case) -> Case:
    """Return a case in a scenario, or the case itself if that would not be valid."""
    draw = random.Random(f"scenario {name} {seed}")
    changed = SCENARIOS[name](draw, replace(case, content=copy.deepcopy(case.content)))
    if features.is_valid(changed.content, changed.side_by_side > 1):
        return changed
    return case


# ---- parts of scenarios ----


def _network(name: str, gpus: tuple[int, int], epochs: int, batch: int) -> Content:
    return {
        "family": "softmax",
        "name": name,
        "gpus": list(gpus),
        "train": {"batch": {"size": batch}, "stopping": {"max_epochs": epochs}},
    }


def _calm(case: Case, nodes: int, ranks_per_node: int, content: Content, **changes: Any) -> Case:
    """Return a case without the faults of its seed."""
    from tests.simulate.disk import Faults

    values: Content = {
        "nodes": nodes,
        "ranks_per_node": ranks_per_node,
        "fault_tolerant": False,
        "kinds": (),
        "events": (),
        "launches": 0,
        "late": 0.01,
        "delay_s": min(case.delay_s, 1e-3),
        "slow": 1.0,
        "offsets": (),
        "side_by_side": 1,
        "cores": 0,
        "disk": Faults(),
        **changes,
    }
    return replace(case, content=content, **values)


def _content(networks: list[Content], samples: int, policy: str, **data: Any) -> Content:
    from tests.simulate.cases import _PLAIN, _merged

    content = _merged(
        _PLAIN,
        {
            "models": networks,
            "data": {"path": str(samples), **data},
            "schedule": {"policy": policy},
            "checkpoint": {"every": 0.1, "keep": "best+last"},
        },
    )
    return copy.deepcopy(content)


def _event(
    kind: str, launch: int = 0, at_s: float = 0.0, target: int = 0, amount: float = 0.0
) -> Any:
    from tests.simulate import cases

    return cases.Event(launch, at_s, kind, target, amount)


def _number(name: str) -> int:
    """Return the number of a phase of groups or of a report, by which an event names it."""
    from fleet.control.group import GROUP_MESSAGES, Phase

    names = [phase.name for phase in Phase]
    if name not in names:
        names = [report.__name__ for report in GROUP_MESSAGES]
    return names.index(name)


def _built(network: Content, function: str, **train: Any) -> Content:
    """Let a function build a network."""
    network.pop("family", None)
    network["build"] = function if ":" in function else f"{MODELS}:{function}"
    network["train"].update(train)
    return network


# ---- scenarios ----


def _deadly_network(draw: random.Random, case: Case) -> Case:
    """A network kills its ranks, until it is given up."""
    ranks = draw.choice((2, 3, 4))
    networks = [_network(f"n{number}", (1, 1), 2, 4) for number in range(draw.randint(1, 2))]
    networks.append(_built(_network("f", (1, 1), 2, 4), "deadly"))
    content = _content(
        networks, draw.randint(8, 30), draw.choice(("adaptive", "baseline", "local"))
    )
    content["max_deaths"] = draw.randint(1, 3)
    shared = draw.choice((1, 1, 2))
    return _calm(case, 1, ranks, content, side_by_side=shared, fault_tolerant=draw.random() < 0.3)


def _many_preprocessors(draw: random.Random, case: Case) -> Case:
    """Several preprocessors on a node, of which one is slow."""
    networks = [_network("n0", (1, 1), 3, 3), _network("n1", (1, 1), 1, 3)]
    order = draw.choice(({}, {"order": "ring", "shards": 8}))
    content = _content(networks, draw.randint(80, 160), "adaptive", cache="none", **order)
    content["resources"]["preprocessors"] = draw.choice((2, 3))
    content["data"]["source"] = "tests.simulate.sources:heavy"
    content["data"]["shared_memory"] = 10_000 if order else draw.choice((4_000, 10_000))
    return _calm(case, 1, 5, content, slow=draw.choice((1.0, 8.0, 20.0)))


def _long_epochs(draw: random.Random, case: Case) -> Case:
    """Epochs take seconds, and a signal comes within one."""
    trainers = draw.choice((1, 2))
    networks = [_network(f"n{number}", (1, trainers), 2, 2) for number in range(trainers)]
    content = _content(networks, draw.randint(700, 900), draw.choice(("adaptive", "baseline")))
    content["data"]["cache"] = draw.choice(("memory", "none"))
    content["checkpoint"]["every"] = draw.choice((0.2, 0.5))
    kind = draw.choice(("signal", "kill all"))
    events = (_event(kind, 0, 1.0 + draw.random(), 2 * draw.randrange(2), 0.5),)
    return _calm(case, 1, 1 + trainers, content, kinds=(kind,), events=events, launches=1)


def _ring_of_folds(draw: random.Random, case: Case) -> Case:
    """Networks of a fold read parts of the shards of a ring."""
    networks = [_network("n0", (1, 2), 2, draw.randint(2, 5))]
    content = _content(
        networks, draw.randint(30, 60), "adaptive", order="ring", shards=draw.randint(3, 6)
    )
    content["data"].update({"source": "tests.sources:unvalidated", "folds": 2})
    return _calm(case, 1, draw.choice((2, 3)), content)


def _growing_group(draw: random.Random, case: Case) -> Case:
    """A group gets the devices of others that have ended, within its epoch."""
    trainers = draw.choice((2, 3))
    networks = [_network("n0", (1, trainers), 3, 2)]
    networks += [_network(f"n{number}", (1, 1), 1, 8) for number in range(1, trainers)]
    none = {"cache": "none"}
    order = draw.choice((none, none, {"cache": "memory"}, {"order": "ring", "shards": 5}))
    content = _content(networks, draw.randint(60, 120), "adaptive", **order)
    content["schedule"]["rates"] = f"{features.SHARED}/rates.json"
    nodes = draw.choice((1, 1, 2))
    content["resources"]["preprocessors"] = nodes
    return _calm(case, nodes, trainers + 1, content, fault_tolerant=draw.random() < 0.2)


def _ring_of_nodes(draw: random.Random, case: Case) -> Case:
    """A ring is relayed between nodes by late messages, and is larger than the memory."""
    networks = [_network(f"n{number}", (1, 1), 2, 3) for number in range(2)]
    if draw.random() < 0.5:
        networks = [_network("n0", (2, 2), 3, 3)]
    content = _content(networks, draw.randint(80, 160), "adaptive", order="ring", shards=9)
    content["data"]["shared_memory"] = draw.choice((2_000, 3_000, 5_000))
    content["resources"]["preprocessors"] = 2
    return _calm(case, 2, 2, content, delay_s=2e-2, late=0.3)


def _single_samples(draw: random.Random, case: Case) -> Case:
    """Batches are smaller than groups, so some ranks have no samples."""
    networks = [_network("n0", (2, 2), 2, 1), _network("n1", (1, 1), 1, 8)]
    content = _content(networks, draw.randint(40, 80), "adaptive", cache="none")
    content["data"]["shared_memory"] = draw.choice((3_100, 3_200))
    return _calm(case, 1, 4, content)


def _emulated_search(draw: random.Random, case: Case) -> Case:
    """Emulated networks, proposed by a searcher."""
    networks = [_network("n0", (1, 1), 2, 4)]
    networks.append(
        {
            "family": "softmax",
            "name": "s",
            "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.3}},
            "search": {"sampler": "random", "max_trials": 3},
            "train": {"batch": {"size": 4}, "stopping": {"max_epochs": 2}},
        }
    )
    content = _content(networks, draw.randint(8, 30), "adaptive")
    content["schedule"]["rates"] = f"{features.SHARED}/rates.json"
    if draw.random() < 0.5:
        content["resources"]["engine"] = "emulated"
    else:
        networks[-1]["name"] = "t"  # which the file of rates lacks
        content["models"] = networks
    return _calm(case, 1, 3, content)


def _search_alone(draw: random.Random, case: Case) -> Case:
    """A searcher proposes all networks."""
    network = {
        "family": "softmax",
        "name": "s",
        "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.3}},
        "search": {"sampler": "random", "max_trials": 3, "max_concurrent": 1},
        "train": {"batch": {"size": 4}, "stopping": {"max_epochs": 2}},
    }
    content = _content([network], draw.randint(8, 30), draw.choice(("adaptive", "baseline")))
    return _calm(case, 1, draw.choice((2, 3)), content)


def _rates_of_batches(draw: random.Random, case: Case) -> Case:
    """The policy chooses the batches, by rates of a file or by measurements."""
    networks = [_network(f"n{number}", (1, 2), 2, 4) for number in range(2)]
    for network in networks:
        network["train"]["batch"] = {"size": [1, 8], "learning_rate": "linear"}
    content = _content(networks, draw.randint(200, 300), "elastic")
    if draw.random() < 0.5:
        content["schedule"]["rates"] = f"{features.SHARED}/rates_of_batches.json"
    launches = draw.choice((0, 1, 2))
    events = tuple(
        _event("kill all", launch, 0.5 + 2 * draw.random()) for launch in range(launches)
    )
    return _calm(
        case, 1, 3, content, kinds=("kill all",) * bool(events), events=events, launches=launches
    )


def _balanced_classes(draw: random.Random, case: Case) -> Case:
    """Class weights by the data, of which one network sees other transforms."""
    networks = [_network(f"n{number}", (1, 1), 2, 4) for number in range(2)]
    if draw.random() < 0.5:
        networks[1]["data"] = {
            "transforms": [{"center_crop": {"size": [4, 4]}}, {"scale": {"mean": 0.4, "std": 0.5}}]
        }
    content = _content(networks, draw.randint(8, 40), draw.choice(("adaptive", "baseline")))
    content["data"]["cache"] = draw.choice(("memory", "none", "file"))
    content["train"]["class_weights"] = "balanced"
    content["data"]["test"] = 0.2
    return _calm(case, 1, draw.choice((1, 2, 3)), content)


def _failing_repeat(draw: random.Random, case: Case) -> Case:
    """One of the repeats of a network fails, and the launch ends before another network."""
    network = _built(_network("n0", (1, 1), 2, 4), "flawed")
    network["repeats"] = 3
    networks = [network, _network("n1", (1, 1), 4, 2)]
    content = _content(networks, draw.randint(60, 90), draw.choice(("adaptive", "baseline")))
    events = (_event("signal", 0, 0.8 + draw.random(), 0),)
    return _calm(
        case, 1, draw.choice((2, 3)), content, kinds=("signal",), events=events, launches=1
    )


def _damage(draw: random.Random, case: Case) -> Case:
    """Checkpoints are damaged or deleted between launches."""
    networks = [_network(f"n{number}", (1, 1), 3, 3) for number in range(2)]
    content = _content(networks, draw.randint(60, 90), draw.choice(("adaptive", "baseline")))
    content["checkpoint"]["every"] = 60.0
    content["checkpoint"]["keep"] = draw.choice(("best+last", "last"))
    # stops within the launch, or leaves networks that have finished
    stop_s = draw.choice((0.5, 0.7, 30.0))
    ways = [draw.choice((0, 0, 1, 2, 3, 4, 5)) for _ in range(2)]
    events = (
        _event("signal", 0, stop_s, 0),
        *(_event("damage", 1, 0.0, draw.randrange(1000), way / 6 + 0.01) for way in ways),
    )
    return _calm(case, 1, 3, content, kinds=("damage", "signal"), events=events, launches=2)


def _crash_of_storage(draw: random.Random, case: Case) -> Case:
    """The storage crashes right after one of the first writes of a launch."""
    networks = [_network(f"n{number}", (1, 1), 2, 4) for number in range(2)]
    content = _content(networks, draw.randint(8, 30), "adaptive")
    launch = draw.choice((0, 0, 1))
    events = [_event("crash storage in write", launch, 0.0, 0, draw.random())]
    if launch:
        events.append(_event("kill all", 0, 0.6 * draw.random()))
    return _calm(
        case,
        1,
        3,
        content,
        kinds=("crash storage in write", "kill all"),
        events=tuple(events),
        launches=2,
        side_by_side=draw.choice((1, 1, 2)),
    )


def _tight_quota(draw: random.Random, case: Case) -> Case:
    """The quota of checkpoints is about as large as they need."""
    networks = [_network(f"n{number}", (1, 1), 3, 4) for number in range(3)]
    content = _content(networks, draw.randint(8, 30), "adaptive")
    content["checkpoint"]["quota"] = draw.randint(33_000, 38_000)
    if draw.random() < 0.5:  # it is tight while both of two networks train
        content["models"].pop()
        content["checkpoint"]["quota"] = draw.randint(24_500, 29_500)
        content["data"]["path"] = str(draw.randint(60, 90))
    return _calm(case, 1, 3, content)


def _edited_code(draw: random.Random, case: Case) -> Case:
    """A user edits a file of the model function between launches."""
    edited = draw.randrange(3)
    function = ("mine.nets.models:network", "mine.nets.models:network", "helped")[edited]
    networks = [_built(_network("n0", (1, 1), 4, 3), function)]
    networks.append(_network("n1", (1, 1), 4, 3))
    content = _content(networks, draw.randint(20, 40), "adaptive")
    events = (
        _event("signal", 0, 0.4 + 0.2 * draw.random(), 0),
        _event("edit code", 1, 0.0, edited),
    )
    return _calm(case, 1, 2, content, kinds=("signal", "edit code"), events=events, launches=2)


def _lazy_policy(draw: random.Random, case: Case) -> Case:
    """A policy of the user leaves all networks waiting."""
    networks = [_network(f"n{number}", (1, 1), 2, 4) for number in range(2)]
    content = _content(networks, draw.randint(8, 30), "tests.simulate.policies:LAZY")
    return _calm(case, 1, 3, content, kinds=("lazy policy",), launches=1)


def _short_walltime(draw: random.Random, case: Case) -> Case:
    """The walltime ends before another network could start."""
    networks = [_built(_network(f"n{n}", (1, 1), 1, 4), "slow") for n in range(4)]
    content = _content(networks, draw.randint(8, 20), draw.choice(("adaptive", "baseline")))
    events = tuple(
        _event("walltime", launch, 0.0, 2, 0.3 + 0.6 * draw.random()) for launch in (0, 1)
    )
    return _calm(
        case,
        1,
        draw.choice((2, 3)),
        content,
        kinds=("walltime",),
        events=events,
        launches=2,
        delay_s=1e-4,
    )


def _deaf_function(draw: random.Random, case: Case) -> Case:
    """A model function hangs where Python handles no signal, also while the launch ends."""
    networks = [_network("n0", (1, 1), 3, 2)]
    networks.append(
        _built(
            _network("f", (1, 1), 2, 4), "uninterruptible", build_timeout=draw.choice((0.5, 5.0))
        )
    )
    content = _content(networks, draw.randint(20, 60), draw.choice(("adaptive", "baseline")))
    events: tuple[Any, ...] = ()
    if draw.random() < 0.7:
        events = (_event("signal", 0, 0.2 + draw.random(), 2 * draw.randrange(2), 0.5),)
    return _calm(
        case,
        1,
        draw.choice((3, 4)),
        content,
        kinds=("signal",) * bool(events),
        events=events,
        launches=len(events),
        fault_tolerant=draw.random() < 0.3,
    )


def _death_after_message(draw: random.Random, case: Case) -> Case:
    """With ULFM, ranks of a group die around the messages by which it starts or changes."""
    trainers = draw.choice((2, 3))
    networks = [_network(f"n{n}", (trainers, trainers), 2, 4) for n in range(2)]
    content = _content(networks, draw.randint(20, 60), "adaptive")
    events = tuple(
        _event("die in message", launch, 0.0, 2 + draw.randrange(trainers - 1), draw.random())
        for launch in (0, 1, 2)
    )
    return _calm(
        case,
        1,
        1 + trainers,
        content,
        kinds=("die in message",),
        events=events,
        launches=3,
        fault_tolerant=True,
        delay_s=1e-2,
        late=0.3,
    )


def _command_to_ended(draw: random.Random, case: Case) -> Case:
    """Somebody stops networks, some of which have ended."""
    networks = [_network("n0", (1, 1), 1, 8), _network("n1", (1, 1), 4, 2)]
    content = _content(networks, draw.randint(60, 90), draw.choice(("adaptive", "baseline")))
    content["keep_open"] = 5.0
    at_s = 1.0 + 2.0 * draw.random()
    events = tuple(
        _event("give verdict", 0, at_s + 0.1 * number, draw.randrange(1000), draw.random())
        for number in range(3)
    )
    return _calm(case, 1, 3, content, kinds=("give verdict",), events=events, launches=1)


def _crowded_devices(draw: random.Random, case: Case) -> Case:
    """More trainers of a node share its devices than networks may share one."""
    networks = [_network(f"n{number}", (1, 1), 3, 2 + number) for number in range(4)]
    if draw.random() < 0.5:
        _built(networks[0], "greedy")
    content = _content(networks, draw.randint(100, 160), draw.choice(("adaptive", "baseline")))
    content["resources"]["networks_per_gpu"] = 2
    return _calm(case, 1, 5, content)


def _failures_that_pass(draw: random.Random, case: Case) -> Case:
    """A network fails twice for a reason that passes."""
    networks = [_network("n0", (1, 1), 2, 4)]
    networks.append(_built(_network("n1", (1, 1), 2, 4), "shaky"))
    content = _content(networks, draw.randint(8, 30), draw.choice(("adaptive", "baseline")))
    return _calm(case, 1, draw.choice((2, 3)), content)


def _unexpected_error(draw: random.Random, case: Case) -> Case:
    """A model function raises what is no Exception."""
    networks = [_network("n0", (1, 1), 2, 4)]
    networks.append(_built(_network("f", (1, 1), 2, 4), "unexpected"))
    content = _content(networks, draw.randint(8, 30), draw.choice(("adaptive", "baseline")))
    return _calm(case, 1, draw.choice((1, 2, 3)), content)


def _built_networks(draw: random.Random, case: Case) -> Case:
    """Functions build all networks, within a limit that is shorter than their training."""
    networks = [
        _built(_network(f"n{n}", (1, 1), 2, 2), "tests.sources:zeros", build_timeout=0.5)
        for n in range(1)
    ]
    content = _content(networks, draw.randint(1100, 1200), "baseline", cache="memory")
    if draw.random() < 0.5:
        return _calm(case, 1, 2, content)
    networks[0]["train"]["build_timeout"] = 60.0
    events = (_event("signal", 0, 7.0 + 2.0 * draw.random(), 0),)
    return _calm(case, 1, 2, content, kinds=("signal",), events=events, launches=1)


def _node_restarts(draw: random.Random, case: Case) -> Case:
    """A node crashes, and the same command is given there again; or on a node beside it."""
    networks = [_network(f"n{number}", (1, 1), 3, 2) for number in range(2)]
    content = _content(networks, draw.randint(500, 600), draw.choice(("adaptive", "baseline")))
    events = (_event("crash node", 0, 4.2 + 2.0 * draw.random(), 0),)
    return _calm(case, 1, 3, content, kinds=("crash node",), events=events, launches=1)


def _live_holder(draw: random.Random, case: Case) -> Case:
    """The same command is given again while a launch runs, which may be suspended meanwhile."""
    networks = [_network(f"n{number}", (1, 1), 3, 2) for number in range(2)]
    content = _content(networks, draw.randint(300, 500), "baseline", cache="memory")
    events = [_event("second launch", 0, 0.5 + 2 * draw.random())]
    kinds: tuple[str, ...] = ("second launch",)
    if draw.random() < 0.6:
        kinds += ("suspend",)
        # around the first renewals of its lease
        events.append(_event("suspend", 0, 3.1 + 2.8 * draw.random(), 0, 0.42 + draw.random() / 5))
    return _calm(case, 1, 3, content, kinds=kinds, events=tuple(events), launches=1)


def _many_epochs(draw: random.Random, case: Case) -> Case:
    """Samples that stay in memory are used again and again."""
    networks = [_network(f"n{number}", (1, 1), 12, 8) for number in range(3)]
    content = _content(networks, draw.randint(8, 16), "adaptive", cache="memory")
    return _calm(case, 1, 4, content)


def _node_dies(draw: random.Random, case: Case) -> Case:
    """With ULFM, a whole node dies, which is the fault of no network."""
    networks = [_network(f"n{number}", (1, 2), 3, 2) for number in range(3)]
    content = _content(networks, draw.randint(60, 90), draw.choice(("adaptive", "baseline")))
    content["resources"]["preprocessors"] = 2
    content["max_deaths"] = 1
    events = (_event("crash node", 0, 0.5 + 2.0 * draw.random(), draw.choice((3, 4, 5))),)
    return _calm(
        case,
        2,
        3,
        content,
        kinds=("crash node",),
        events=events,
        launches=1,
        fault_tolerant=True,
    )


def _pruned_network_dies(draw: random.Random, case: Case) -> Case:
    """With ULFM, ranks of a group die while it stops, perhaps because its network is pruned."""
    networks = [_network(f"n{number}", (2, 2), 4, 4) for number in range(4)]
    content = _content(networks, draw.randint(20, 40), "adaptive")
    content["prune"] = {"rule": "asha", "min_epochs": 1, "factor": 2}
    events = tuple(_event("die in phase", launch, 0.2 * launch, 6, 0.0) for launch in (0, 1, 2))
    return _calm(
        case,
        1,
        3,
        content,
        kinds=("die in phase",),
        events=events,
        launches=3,
        fault_tolerant=True,
        delay_s=1e-2,
        late=0.3,
    )


def _many_nodes(draw: random.Random, case: Case) -> Case:
    """Samples reach many nodes over a tree of messages."""
    nodes = draw.choice((4, 5))
    networks = [_network(f"n{number}", (1, 2), 2, 4) for number in range(2)]
    content = _content(networks, draw.randint(20, 40), "adaptive", cache="none")
    content["resources"]["preprocessors"] = nodes
    return _calm(case, nodes, 2, content, fault_tolerant=draw.random() < 0.7)


def _node_released(draw: random.Random, case: Case) -> Case:
    """Somebody asks for a node while networks train on all."""
    nodes = draw.choice((2, 3))
    networks = [_network(f"n{number}", (1, 2), 3, 2) for number in range(3)]
    content = _content(networks, draw.randint(150, 250), draw.choice(("adaptive", "baseline")))
    content["resources"]["preprocessors"] = nodes
    # the number of the command among those of a person
    events = (_event("commands", 0, 0.5 + draw.random(), draw.randrange(1000), 9.5 / 12),)
    return _calm(case, nodes, 3, content, kinds=("commands",), events=events, launches=1)


def _chosen_cache(draw: random.Random, case: Case) -> Case:
    """FLEET chooses where samples are kept, near the limits of each choice."""
    suits = draw.choice(("file", "stream", "any"))
    samples = 1_000 if suits == "file" else draw.choice((200, 300))
    epochs = draw.choice((1, 5))
    policy = draw.choice(("adaptive", "adaptive", "baseline"))
    source = draw.choice(("tests.sources:numbered", "tests.simulate.sources:heavy"))
    noises = ("tests.sources:noise", *(f"tests.simulate.sources:{n}_noise" for n in _NOISES))
    noise = draw.choice(noises)
    preprocessors = draw.choice((1, 1, 2, 3))
    ranks = preprocessors + draw.choice((1, 2))
    cores = draw.choice((0, ranks, ranks - 1))
    stored = 16 * (samples + 20)  # bytes
    window = stored * draw.choice((0.7, 1.4, 1.7, 2.3, 4.0, 12.0))
    quota = draw.choice((None, 1_000_000))
    if suits == "file":  # decoding takes long, and memory is scarce
        source, noise, epochs, preprocessors = "tests.simulate.sources:heavy", noises[0], 5, 1
        ranks, window = 2, 0.7 * stored
        # the file fits, but perhaps not beside the checkpoints
        quota = draw.choice((None, stored + 2_000, 1_000_000))
    elif suits == "stream":  # each of two networks would repeat slow work, if they share cores
        source, noise, preprocessors = "tests.sources:numbered", noises[-1], 1
        policy, ranks, window = "adaptive", 3, 1.7 * stored
        cores = draw.choice((2, 3, 4))
    content = _content([_network("n0", (1, 1), epochs, 25)], samples, policy)
    content["data"]["source"] = source
    content["data"]["transforms"][1] = noise
    content["data"]["shared_memory"] = max(3_200, int(window))
    content["resources"]["preprocessors"] = preprocessors
    if quota is not None:
        content["checkpoint"]["quota"] = quota
    return _calm(case, 1, ranks, content, cores=cores)


def _few_cores(draw: random.Random, case: Case) -> Case:
    """Trainers may share cores, of which there are some."""
    networks = [_network(f"n{number}", (1, 1), 2, 4) for number in range(4)]
    content = _content(networks, draw.randint(8, 30), draw.choice(("adaptive", "baseline")))
    content["resources"]["networks_per_gpu"] = draw.choice((2, 3, 4))
    return _calm(case, 1, draw.choice((3, 4, 5)), content, cores=draw.choice((2, 3, 4)))


def _balanced_entry(draw: random.Random, case: Case) -> Case:
    """Classes are weighted by the data for one of two networks, each with its own transforms."""
    networks = [_network(f"n{number}", (1, 1), 2, 4) for number in range(2)]
    networks[draw.randrange(2)]["train"]["class_weights"] = "balanced"
    networks[1]["data"] = {
        "transforms": [{"center_crop": {"size": [4, 4]}}, {"scale": {"mean": 0.4, "std": 0.5}}]
    }
    content = _content(networks, draw.randint(8, 40), draw.choice(("adaptive", "baseline")))
    return _calm(case, 1, draw.choice((2, 3)), content)


def _whole_groups(draw: random.Random, case: Case) -> Case:
    """Each network is trained by all trainers."""
    trainers = draw.choice((2, 3))
    networks = [_network(f"n{number}", (trainers, trainers), 2, 4) for number in range(2)]
    content = _content(networks, draw.randint(20, 40), "adaptive")
    return _calm(case, 1, 1 + trainers, content)


def _limited_rates(draw: random.Random, case: Case) -> Case:
    """A searcher may use networks up to a rate, by a file of rates or by training."""
    search = {
        "sampler": "random",
        "max_trials": 3,
        "max_concurrent": 2,
        "constraints": [f"rate <= {MOST_SAMPLES_PER_S}"],
    }
    network = {
        "family": "softmax",
        "name": "s",
        "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.3}},
        "search": search,
        "train": {"batch": {"size": 4}, "stopping": {"max_epochs": 2}},
    }
    content = _content([network], draw.randint(20, 40), draw.choice(("adaptive", "baseline")))
    if draw.random() < 0.6:
        content["schedule"]["rates"] = f"{features.SHARED}/rates.json"
    return _calm(case, 1, draw.choice((2, 3)), content)


def _lost_best(draw: random.Random, case: Case) -> Case:
    """The best checkpoint of a finished network is deleted between launches."""
    networks = [_network("n0", (1, 1), draw.choice((1, 2)), 8), _network("n1", (1, 1), 6, 2)]
    content = _content(networks, draw.randint(60, 90), draw.choice(("adaptive", "baseline")))
    events = (_event("signal", 0, 1.0 + draw.random(), 0), _event("lose best", 1))
    return _calm(case, 1, 3, content, kinds=("signal", "lose best"), events=events, launches=2)


def _too_much_asked(draw: random.Random, case: Case) -> Case:
    """A user asks for more GPUs or a larger batch than there are, and then for less."""
    networks = [_network(f"n{number}", (1, 1), 2, 4) for number in range(2)]
    content = _content(networks, draw.randint(8, 30), draw.choice(("adaptive", "local")))
    events = (_event("ask too much", target=draw.randrange(2)),)
    ranks = draw.choice((2, 3))
    return _calm(case, 1, ranks, content, kinds=("ask too much",), events=events, launches=1)


def _ends_and_resumes(draw: random.Random, case: Case) -> Case:
    """Some networks have ended when others are resumed, and their last epoch may not be best."""
    networks = [_network("n0", (1, 1), 5, 4), _network("n1", (1, 1), 6, 2)]
    networks[0]["train"]["optimizer"] = {"learning_rate": draw.choice((0.02, 3.0))}
    content = _content(networks, draw.randint(60, 90), draw.choice(("adaptive", "baseline")))
    content["checkpoint"]["keep"] = draw.choice(("best+last", "last"))
    events = tuple(_event("signal", launch, 1.2 + 2 * draw.random(), 0) for launch in (0, 1))
    return _calm(case, 1, 3, content, kinds=("signal",), events=events, launches=2)


def _shrinking_group(draw: random.Random, case: Case) -> Case:
    """A group gives a device to a network that is added, and another needs all devices."""
    networks = [_network("n0", (1, 2), 6, 2), _network("n1", (2, 2), 2, 4)]
    content = _content(networks, draw.randint(60, 90), draw.choice(("adaptive", "local")))
    content["data"]["cache"] = "memory"
    # the number of the command among those of a person: a network is added
    events = tuple(_event("commands", 0, at_s + draw.random(), 1, 0.01) for at_s in (0.4, 1.4))
    return _calm(case, 1, 3, content, kinds=("commands",), events=events, launches=1)


def _lost_folder(draw: random.Random, case: Case) -> Case:
    """All files of a network are deleted between launches."""
    networks = [_network(f"n{number}", (1, 1), 3, 3) for number in range(2)]
    content = _content(networks, draw.randint(60, 90), draw.choice(("adaptive", "baseline")))
    events = (
        _event("signal", 0, draw.choice((0.5, 0.7, 0.9)), 0),
        _event("damage", 1, 0.0, draw.randrange(1000), 1.01),
    )
    return _calm(case, 1, 3, content, kinds=("damage", "signal"), events=events, launches=2)


def _small_window(draw: random.Random, case: Case) -> Case:
    """A network goes on for many epochs of a small window after another has ended."""
    networks = [_network("n0", (1, 1), 6, 8), _network("n1", (1, 1), 1, 8)]
    content = _content(networks, draw.randint(200, 260), "adaptive", cache="none")
    content["data"]["shared_memory"] = 3_100
    return _calm(case, 1, 3, content)


def _dies_while_saving(draw: random.Random, case: Case) -> Case:
    """With ULFM, the only rank of a group dies while it writes, before its report has arrived."""
    networks = [_network("n0", (1, 1), 3, 4)]
    networks.append(
        {
            "family": "softmax",
            "name": "s",
            "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.3}},
            "search": {"sampler": "random", "max_trials": 3, "max_concurrent": 1},
            "train": {"batch": {"size": 4}, "stopping": {"max_epochs": draw.choice((1, 2))}},
        }
    )
    content = _content(networks, draw.randint(8, 20), draw.choice(("adaptive", "baseline")))
    # The second one dies around the last call for the first checkpoint.
    amounts = (draw.random(), 0.78 + 0.08 * draw.random())
    events = tuple(
        _event("die in write", 0, 0.0, rank, amount) for rank, amount in enumerate(amounts, 1)
    )
    return _calm(
        case,
        1,
        4,
        content,
        kinds=("die in write",),
        events=events,
        launches=1,
        fault_tolerant=True,
        delay_s=1e-2,
        late=0.5,
    )


def _stopped_network_dies(draw: random.Random, case: Case) -> Case:
    """With ULFM, somebody stops a network, and a rank of its group dies meanwhile."""
    ranks = draw.choice((1, 2))
    networks = [_network(f"n{number}", (ranks, ranks), 6, 4) for number in range(2)]
    content = _content(networks, draw.randint(40, 60), draw.choice(("adaptive", "baseline")))
    events = (
        _event("give verdict", 0, 0.4 + 0.4 * draw.random(), draw.randrange(1000), 0.0),
        _event("die in phase", 0, 0.3, 6, draw.random()),
    )
    return _calm(
        case,
        1,
        4,
        content,
        kinds=("give verdict", "die in phase"),
        events=events,
        launches=1,
        fault_tolerant=True,
    )


def _death_in_a_phase(draw: random.Random, case: Case) -> Case:
    """With ULFM, ranks of groups die in any phase, and messages of the others are late."""
    ranks = draw.choice((2, 3))
    networks = [_network(f"n{number}", (ranks, ranks), 3, 4) for number in range(3)]
    networks[1]["train"]["stopping"]["patience"] = 1
    if draw.random() < 0.3:
        _built(networks[2], "tests.sources:not_a_number")
    content = _content(networks, draw.randint(20, 40), draw.choice(("adaptive", "baseline")))
    content["max_deaths"] = 99
    delay_s, slow = draw.choice(((1e-2, 1.0), (3e-2, 1.0), (1e-2, 6.0)))
    events = [
        _event("die in phase", launch, 0.1 * draw.random(), draw.randrange(8), draw.random())
        for launch in (0, 0, 0, 1, 1)
    ]
    scale = slow * delay_s / 1e-2
    events += [_event("signal", launch, scale * (1.0 + 2.0 * draw.random())) for launch in (0, 1)]
    return _calm(
        case,
        1,
        7,
        content,
        kinds=("die in phase", "signal", "late messages"),
        events=tuple(events),
        launches=3,
        fault_tolerant=draw.random() < 0.9,
        delay_s=delay_s,
        late=0.5,
        slow=slow,
    )


def _own_engine(draw: random.Random, case: Case) -> Case:
    """An engine of the user, some of whose networks have metrics, steps or weights of their own."""
    networks = [_network(f"n{number}", (1, 1), 2, 2) for number in range(2)]
    if draw.random() < 0.3:
        networks[1]["gpus"] = [2, 2]
    content = _content(networks, draw.randint(200, 300), draw.choice(("adaptive", "baseline")))
    content["data"]["cache"] = draw.choice(("memory", "none"))
    content["checkpoint"]["every"] = 0.2
    content["resources"]["engine"] = f"{ENGINES}:{draw.choice(('PROMPT', 'LATE'))}"
    if draw.random() < 0.5:
        content["models"][0]["train"]["start"] = {"file": f"{features.SHARED}/start.txt"}
    if draw.random() < 0.5:
        content["train"]["step"] = f"{ENGINES}:rows_match"
    else:
        content["train"]["metrics"] = ["mean_absolute_error"]
        content["data"]["test"] = 0.2
    return _calm(case, 1, 3, content)


def _counted_energy(draw: random.Random, case: Case) -> Case:
    """Counters measure the energy of trainers, some of which are killed within a long epoch."""
    networks = [_network("n0", (1, 1), 2, 2)]
    content = _content(networks, draw.randint(130, 150), draw.choice(("adaptive", "baseline")))
    content["resources"]["engine"] = f"{ENGINES}:PROMPT"
    content["train"]["step"] = f"{ENGINES}:{draw.choice(('slow', 'unlucky'))}"
    content["checkpoint"]["every"] = 3.0
    events = (_event("kill all", 0, 72.0 + 6 * draw.random()),) * draw.randrange(2)
    return _calm(
        case,
        1,
        draw.choice((2, 3)),
        content,
        kinds=("kill all",) * len(events),
        events=events,
        launches=len(events),
        watts=1000.0,
    )


def _refused_folder(draw: random.Random, case: Case) -> Case:
    """A launch takes a run over from a dead one, and the disk does not let it delete folders."""
    from tests.simulate.disk import Faults

    networks = [_network(f"n{number}", (1, 1), 3, 2) for number in range(2)]
    content = _content(networks, draw.randint(60, 90), draw.choice(("adaptive", "baseline")))
    events = (_event("kill all", 0, 0.4 + 0.4 * draw.random()),)
    return _calm(
        case,
        1,
        draw.choice((2, 3)),
        content,
        kinds=("kill all", "disk errors"),
        events=events,
        launches=2,
        disk=Faults(refused="rmdir"),
    )


def _listed_gpus(draw: random.Random, case: Case) -> Case:
    """A driver lists GPUs, and rates are kept for their name and the chosen device."""
    networks = [_network(f"n{number}", (1, 1), 3, 4) for number in range(2)]
    content = _content(networks, draw.randint(60, 90), "adaptive")
    content["resources"]["device"] = draw.choice(("auto", "cpu"))
    return _calm(case, 1, draw.choice((2, 3)), content, gpus="Simulated 100")


def _watched_launch(draw: random.Random, case: Case) -> Case:
    """A user watches a launch in a terminal."""
    networks = [_network(f"n{number}", (1, 1), 2, 4) for number in range(2)]
    content = _content(networks, draw.randint(20, 60), draw.choice(("adaptive", "baseline")))
    return _calm(case, 1, draw.choice((1, 2, 3)), content, terminal=True)


def _known_death(draw: random.Random, case: Case) -> Case:
    """With ULFM, a rank of a group dies in one of its phases, and rank 0 knows it at once."""
    # PAUSED takes no time if there are few groups, and REGROUPING is none with ULFM.
    phase = draw.choice(("FORMING", "TRAINING", "PAUSING", "WAITING", "STOPPING", "FAILED"))
    networks = [_network(f"n{number}", (2, 2), 3, 3 + number) for number in range(2)]
    content = _content(networks, draw.randint(30, 50), draw.choice(("adaptive", "baseline")))
    if phase == "WAITING":  # for groups that lag behind, because the window is small
        content["schedule"]["policy"] = "adaptive"
        content["data"] |= {"cache": "none", "shared_memory": 3_100, "path": "240"}
    events = [_event("known death", 0, 0.0, _number(phase))]
    if phase == "FAILED":
        events.append(_event("known death", 0, 0.0, _number("TRAINING")))
    if phase == "PAUSING":
        events.append(_event("signal", 0, 0.2 + 0.2 * draw.random()))
    return _calm(
        case,
        1,
        5,
        content,
        kinds=tuple(dict.fromkeys(event.kind for event in events)),
        events=tuple(events),
        launches=1,
        fault_tolerant=True,
    )


# what masters report of groups that do not change
_REPORTS = ("Joined", "FellBack", "Pace", "EpochDone", "Paused", "Converged", "Stopped", "Failed")


def _late_report(draw: random.Random, case: Case) -> Case:
    """Before a report of a group arrives, one of its ranks dies with ULFM, or the launch ends."""
    happens = draw.choice(("death", "signal"))
    report = draw.choice(_REPORTS)
    count = 2
    if report == "Paused" and happens == "death":  # orders to many groups wait for other messages
        count = draw.choice((2, 8))
    networks = [_network(f"n{number}", (2, 2), 3, 3 + number) for number in range(count)]
    if report == "Failed":
        _built(networks[1], "tests.sources:not_a_number")
    content = _content(networks, draw.randint(30, 50), draw.choice(("adaptive", "baseline")))
    events = []
    if report == "Paused":
        events.append(_event("signal", 0, 0.2 + 0.2 * draw.random()))
    elif report == "FellBack":
        events.append(_event("signal", 0, 0.3 + 0.2 * draw.random()))
        events += [_event("damage", 1, 0.0, number, 0.4) for number in range(2)]
    elif report == "Converged":
        events.append(_event("lose best", 1))
    launch = int(report in ("FellBack", "Converged"))
    amount = 0.9 if count > 2 else draw.random()
    events.append(_event(f"{happens} before report", launch, 0.0, _number(report), amount))
    return _calm(
        case,
        1,
        1 + 2 * count,
        content,
        kinds=tuple(dict.fromkeys(event.kind for event in events)),
        events=tuple(events),
        launches=launch + 1,
        fault_tolerant=happens == "death",
    )


def _pauses_to_grow(draw: random.Random, case: Case) -> Case:
    """A group pauses to get a device, and before it says so, the launch or other groups end."""
    networks = [_network("n0", (1, 3), 3, 2), _network("n1", (1, 1), 1, 8)]
    networks.append(_network("n2", (1, 1), draw.choice((2, 12, 16)), 8))
    if draw.random() < 0.7:
        _built(networks[0], "slow")
    content = _content(networks, draw.randint(80, 120), "adaptive")
    content["data"]["cache"] = draw.choice(("none", "memory"))
    content["schedule"]["rates"] = f"{features.SHARED}/rates.json"
    kind = draw.choice(("signal before report", "late report", "late report"))
    events = (_event(kind, 0, 0.0, _number("Paused"), draw.random()),)
    return _calm(case, 1, 4, content, kinds=(kind,), events=events, launches=1)


def _late_failure(draw: random.Random, case: Case) -> Case:
    """A network fails when another rank joins its group, or when it is exported."""
    if draw.random() < 0.5:
        case = _growing_group(draw, case)
        _built(case.content["models"][0], "withering")
        return replace(case, fault_tolerant=False)
    networks = [_network(f"n{number}", (1, 1), 2, 4) for number in range(2)]
    content = _content(networks, draw.randint(30, 50), draw.choice(("adaptive", "baseline")))
    content["resources"]["engine"] = f"{ENGINES}:LASTING"
    return _calm(case, 1, draw.choice((2, 3)), content)


SCENARIOS: dict[str, Scenario] = {
    "deadly network": _deadly_network,
    "many preprocessors": _many_preprocessors,
    "long epochs": _long_epochs,
    "ring of folds": _ring_of_folds,
    "growing group": _growing_group,
    "ring of nodes": _ring_of_nodes,
    "single samples": _single_samples,
    "emulated search": _emulated_search,
    "rates of batches": _rates_of_batches,
    "balanced classes": _balanced_classes,
    "failing repeat": _failing_repeat,
    "damage": _damage,
    "crash of storage": _crash_of_storage,
    "tight quota": _tight_quota,
    "edited code": _edited_code,
    "lazy policy": _lazy_policy,
    "short walltime": _short_walltime,
    "deaf function": _deaf_function,
    "death after message": _death_after_message,
    "command to ended": _command_to_ended,
    "crowded devices": _crowded_devices,
    "failures that pass": _failures_that_pass,
    "unexpected error": _unexpected_error,
    "built networks": _built_networks,
    "node restarts": _node_restarts,
    "live holder": _live_holder,
    "many epochs": _many_epochs,
    "node dies": _node_dies,
    "many nodes": _many_nodes,
    "node released": _node_released,
    "search alone": _search_alone,
    "pruned network dies": _pruned_network_dies,
    "chosen cache": _chosen_cache,
    "few cores": _few_cores,
    "balanced entry": _balanced_entry,
    "whole groups": _whole_groups,
    "limited rates": _limited_rates,
    "lost best": _lost_best,
    "too much asked": _too_much_asked,
    "ends and resumes": _ends_and_resumes,
    "shrinking group": _shrinking_group,
    "small window": _small_window,
    "lost folder": _lost_folder,
    "own engine": _own_engine,
    "counted energy": _counted_energy,
    "refused folder": _refused_folder,
    "listed GPUs": _listed_gpus,
    "dies while saving": _dies_while_saving,
    "stopped network dies": _stopped_network_dies,
    "watched launch": _watched_launch,
    "death in a phase": _death_in_a_phase,
    "known death": _known_death,
    "late report": _late_report,
    "pauses to grow": _pauses_to_grow,
    "late failure": _late_failure,
}
