"""Roles of ranks in a session, and the memory that ranks of a node share."""

import os
from pathlib import Path

import pytest

from fleet.domain.events import CacheChosen, LaunchEnded, NetworkWarned
from fleet.engines.softmax import NumpyEngine
from fleet.errors import ExitStatus
from fleet.runtime import session
from fleet.runtime.session import Session
from fleet.spec.engines import EngineInfo
from fleet.storage.checkpoint import read_state
from fleet.storage.event_log import events_of
from launch import gpus, pinned_memory
from tests.fleet.one_process import Launch
from tests.fleet.runtime.runs import Interruption, prepare, write
from tests.launch.drivers import Driver
from tests.launch.test_numa import machine
from tests.sources import Numbered, _Slowly, reads

SCALED = ["tests.sources:noise", {"scale": {"mean": 0.5, "std": 0.5}}]


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Run a small ensemble; return the exit status of each rank and the prepared launch."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(node_of, watch=lambda session: None, **parts):
        path = write(
            tmp_path,
            **{
                "models": [{"family": "softmax"}],
                "profile": {"batches": 2, "timed": 1},
                "resources": {"engine": "numpy"},
                "data": {"source": "tests.sources:numbered", "path": "12", "transforms": SCALED},
                "train": {
                    "stopping": {"max_epochs": 1},
                    "batch": {"size": 4},
                    "optimizer": {"learning_rate": 0.02},
                },
                **parts,
            },
        )
        prepared = prepare(path, node_of, None, plain=True)
        statuses = {}

        def rank_main(world):
            rank_session = Session(world, prepared, Interruption())
            watch(rank_session)
            statuses[world.rank] = rank_session.run()

        assert Launch(len(node_of), seed=1).run(rank_main)
        return statuses, prepared

    return run


@pytest.mark.parametrize(
    ("node_of", "preparing", "training"),
    [([0], [], [0]), ([0, 0], [0], [1]), ([0, 0, 0, 1, 1], [0, 3], [1, 2, 4])],
)
def test_session_runs_the_role_of_each_rank(launch, monkeypatch, node_of, preparing, training):
    ranks_of = {"Preprocessor": [], "Trainer": []}
    for role in ranks_of:
        kind = getattr(session, role)
        monkeypatch.setattr(
            session,
            role,
            lambda world, *arguments, kind=kind, role=role: ranks_of[role].append(world.rank)
            or kind(world, *arguments),
        )
    statuses, prepared = launch(node_of)
    assert {name: sorted(ranks) for name, ranks in ranks_of.items()} == {
        "Preprocessor": preparing,
        "Trainer": training,
    }
    assert statuses == dict.fromkeys(range(len(node_of)), ExitStatus.OK)
    assert prepared.paths.results.exists()


def test_session_without_stream_only_coordinates_on_rank_0(launch, monkeypatch):
    monkeypatch.setattr(session, "Preprocessor", None)  # fails if a rank makes one
    statuses, _ = launch([0, 0, 0], schedule={"policy": "baseline"})
    assert set(statuses.values()) == {ExitStatus.OK}


def test_session_loads_no_engine_after_all_networks_ended(launch, monkeypatch):
    assert set(launch([0, 0, 0])[0].values()) == {ExitStatus.OK}
    monkeypatch.setattr(session, "make_engine", None)  # fails if a rank makes one
    assert set(launch([0, 0, 0])[0].values()) == {ExitStatus.OK}


def test_session_loads_no_engine_on_trainers_without_work(launch, monkeypatch):
    created, make = [], session.make_engine
    monkeypatch.setattr(
        session,
        "make_engine",
        lambda spec, sample, rates, index, *more: created.append(index)
        or make(spec, sample, rates, index, *more),
    )
    launch([0, 0, 0, 0], models=[{"family": "softmax", "gpus": 1}])
    assert created == [0]


@pytest.mark.parametrize("data", [{"cache": "none"}, {"cache": "memory"}])
def test_session_unlinks_shared_memory_once_mapped(launch, data):
    segments = {}

    def watch(session):
        map_memory = session._map_memory

        def map_and_list():
            map_memory()
            shared = Path("/dev/shm").glob(f"{session._launch.paths.segment_name}*")
            segments[session._world.rank] = [path.name for path in shared]

        session._map_memory = map_and_list

    statuses, prepared = launch(
        [0, 0, 0],
        watch,
        data={"source": "tests.sources:numbered", "path": "12", "transforms": SCALED, **data},
    )
    # other ranks may list it just before rank 0, the node's leader, has unlinked it
    assert segments[0] == []
    assert set(statuses.values()) == {ExitStatus.OK}
    assert len(events_of(prepared.paths.events, LaunchEnded)) == 1


# ---- decoded samples ---------------------------------------------------------------------------


def slow_to_read(path):
    return Numbered(int(path), seed=1, before=_Slowly(0.01)), Numbered(4, seed=2)


def test_session_deletes_decoded_file_when_done(launch, tmp_path):
    built = []
    data = {
        "source": f"{__name__}:slow_to_read",
        "path": "12",
        "transforms": ["decode", *SCALED],
        "order": "ring",
        "shards": 4,
    }
    _, prepared = launch(
        [0, 0, 0],
        lambda session: built.append(session._launch.paths.decoded.exists()),
        data=data,
        train={"stopping": {"max_epochs": 20}, "batch": {"size": 4}},
    )
    (chosen,) = events_of(prepared.paths.events, CacheChosen)
    assert (chosen.cache, chosen.asked, chosen.shuffle) == ("file", "auto", "stream")
    assert built == [True] * 3
    assert not prepared.paths.decoded.exists()
    again = prepare(
        str(tmp_path / "spec.yaml"), [0, 0], None, replay=str(prepared.paths.root), only="softmax"
    )
    assert (again.cache.cache, again.cache.why) == ("file", "as in the previous launch")
    assert again.paths.decoded.exists()
    assert not prepared.paths.decoded.exists()


def test_session_trainers_decode_own_samples_once(launch, tmp_path):
    folder = tmp_path / "reads"
    folder.mkdir()
    data = {
        "source": "tests.sources:noted",
        "path": "12",
        "options": {"folder": str(folder)},
        "transforms": SCALED,
    }
    _, prepared = launch(
        [0], data=data, train={"stopping": {"max_epochs": 3}, "batch": {"size": 4}}
    )
    (chosen,) = events_of(prepared.paths.events, CacheChosen)
    assert (chosen.cache, chosen.shuffle) == ("memory", "network")
    probed = 1 + 8  # the first tells whether samples have several inputs
    assert sum(split == "train" for split, _ in reads(folder)[0]) == probed + 12


def test_session_results_do_not_depend_on_stored_samples(launch, tmp_path):
    def scores(cache):
        data = {
            "source": "tests.sources:partly_bad",
            "path": "12",
            "transforms": SCALED,
            "cache": cache,
            "max_unreadable": 0.5,
        }
        _, prepared = launch(
            [0, 0],
            models=[{"family": "softmax", "name": "a"}],
            output=str(tmp_path / cache),
            train={"stopping": {"max_epochs": 3}, "batch": {"size": 4}},
            data=data,
            schedule={"policy": "baseline"},
        )
        state = read_state(prepared.paths.last("a"), with_arrays=False)
        return [(record.loss, record.val_loss, record.samples) for record in state.history]

    assert scores("memory") == scores("none")


def on_gpus(setup):
    """An engine that also registers its own memory."""
    setup.pin(bytearray(100))
    return NumpyEngine(setup.sample)


ON_GPUS = EngineInfo("numpy", on_gpus, families=frozenset({"softmax"}), uses_gpus=True)
TWO_TRAINERS = {
    "models": [{"family": "softmax", "name": name} for name in ("a", "b")],
    "resources": {"engine": f"{__name__}:ON_GPUS", "preprocessors": 1},
}


@pytest.mark.parametrize(
    ("status", "gpus", "warning"),
    [(0, "0,1", None), (2, "0,1", "cudaHostRegister gives error 2"), (2, "", None)],
    ids=["registered", "refused", "refused without a GPU"],
)
def test_session_registers_memory_copied_to_gpus(
    launch, tmp_path, monkeypatch, status, gpus, warning
):
    driver = Driver(tmp_path, monkeypatch, status=status)
    monkeypatch.setattr(pinned_memory, "LIBRARIES", driver.libraries)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    statuses, prepared = launch([0, 0, 0], **TWO_TRAINERS)
    assert set(statuses.values()) == {ExitStatus.OK}
    calls = driver.calls()
    # of each trainer, and its windows
    assert [number for subject, number in calls if subject == "memory"].count(100) == 2
    assert len(calls) > 4
    if gpus:
        assert {number for subject, number in calls if subject == "device"} == {0, 1}
    assert [event.warning for event in events_of(prepared.paths.events, NetworkWarned)] == (
        [] if warning is None else [f"copying samples to GPUs is slower: {warning}"]
    )


@pytest.mark.parametrize(("gpus", "warned"), [("0", 1), ("", 0)])
def test_session_warns_once_without_gpu_driver(launch, monkeypatch, gpus, warned):
    monkeypatch.setattr(pinned_memory, "LIBRARIES", ())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    statuses, prepared = launch([0, 0], resources={"engine": f"{__name__}:ON_GPUS"})
    assert set(statuses.values()) == {ExitStatus.OK}
    assert len(events_of(prepared.paths.events, NetworkWarned)) == warned


def test_session_binds_trainers_and_windows_near_gpus(launch, tmp_path, monkeypatch):
    bound, created = [], []
    monkeypatch.setattr(
        gpus,
        "SYS",
        machine(
            tmp_path / "sys",
            {0: "0-1", 1: "2-3"},
            {"0000:0a:00.0": ("0x10de", "0x030200", 1), "0000:0b:00.0": ("0x10de", "0x030200", 1)},
        ),
    )
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: bound.append(set(cores)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(
        session,
        "Window",
        lambda *arguments, kind=session.Window, **options: (
            created.append(bound[-1]),
            kind(*arguments, **options),
        )[1],
    )
    launch(
        [0, 0, 0],
        **TWO_TRAINERS,
        data={
            "source": "tests.sources:numbered",
            "path": "12",
            "transforms": SCALED,
            "cache": "none",
        },
    )
    assert created[0] == {2, 3}
    assert bound.count({2, 3}) >= 1 + 2  # once for windows, and for each trainer
