"""Early imports of engines."""

import pickle
import sys
import threading

import pytest

from fleet.comm.roles import assign
from fleet.domain.network import NetworkStatus, Outcome
from fleet.domain.run import RunState
from fleet.runtime.startup import engine_import
from fleet.runtime.startup.engine_import import (
    Announcement,
    EngineImport,
    ImportPlan,
    find_busy_trainers,
    plan_import,
)
from fleet.spec import parse
from tests.fakes import World

ROLES = assign([0, 0, 0, 0], 1, None)  # trainers 1, 2, 3


@pytest.fixture
def spec(tmp_path):
    return parse(
        {
            "output": str(tmp_path),
            "resources": {"engine": "numpy"},
            "models": [
                {"family": "softmax", "name": "a", "gpus": 1},
                {"family": "softmax", "name": "b", "gpus": [1, 2]},
            ],
        }
    )


def test_engine_import_is_for_as_many_trainers_as_networks_use(spec):
    a, b = spec.networks
    assert [find_busy_trainers(remaining, ROLES) for remaining in ((), (a,), (b,), (a, b))] == [
        (),
        (1,),
        (1, 2),
        (1, 2, 3),
    ]
    assert find_busy_trainers((), ROLES, grows=True) == (1, 2, 3)


@pytest.mark.parametrize(
    ("slots", "networks_per_gpu", "ranks"),
    [(None, 1, (1, 2)), (None, 2, (1, 2, 3, 4)), (2, 1, (1, 2, 3, 4))],
)
def test_engine_import_loads_where_sharing_pays(spec, slots, networks_per_gpu, ranks):
    roles = assign([0] * 5, 1, None, slots=slots, cores=2)
    assert find_busy_trainers(spec.networks, roles, True, networks_per_gpu) == ranks


def test_engine_import_ignores_networks_that_have_ended(spec):
    run = RunState(spec)
    assert plan_import(spec, ROLES, run) == ImportPlan("numpy", frozenset({1, 2, 3}))
    run.set_status("b", NetworkStatus((), Outcome("done")))
    assert plan_import(spec, ROLES, run).ranks == {1}
    run.set_status("a", NetworkStatus((), Outcome("it cannot be built", is_failure=True)))
    assert not plan_import(spec, ROLES, run).ranks


def test_engine_import_skips_custom_engines(tmp_path, monkeypatch):
    (tmp_path / "engine_of_a_user.py").write_text(
        "from fleet.spec.engines import EngineInfo\nROW = EngineInfo('own', print)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    local = parse(
        {"models": [{"family": "softmax"}], "resources": {"engine": "engine_of_a_user:ROW"}}
    )
    assert plan_import(local, ROLES, RunState()).engine == ""


def test_engine_import_is_announced_once():
    world = World()
    announcement = Announcement(world)
    announcement.send(ImportPlan("numpy", frozenset({1})))
    announcement.send(ImportPlan())  # after the preparation, or its failure
    assert world.shared == [ImportPlan("numpy", frozenset({1}))]


@pytest.mark.parametrize(
    ("plan", "imported"),
    [
        (ImportPlan("numpy", frozenset({1, 2})), ["numpy"]),
        (ImportPlan("numpy", frozenset({2})), []),
        (ImportPlan("", frozenset({1})), []),
    ],
)
def test_engine_import_is_started_by_ranks_that_will_train(monkeypatch, plan, imported):
    names = []
    monkeypatch.setattr(engine_import, "import_engine", lambda engine: names.append(engine.name))
    loading = EngineImport()
    loading.receive(World(rank=1, answers=plan))
    loading.finish()
    loading.finish()
    assert names == imported


def test_engine_import_ignores_errors(monkeypatch):
    monkeypatch.setattr(engine_import, "import_engine", lambda engine: 1 / 0)
    loading = EngineImport()
    loading.receive(World(rank=1, answers=ImportPlan("numpy", frozenset({1}))))
    loading.finish()


def test_engine_import_finishes_before_other_imports(monkeypatch, tmp_path):
    """Unpickling may import a user's module, which may import the engine's library."""
    (tmp_path / "of_a_user.py").write_text("class Thing:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import of_a_user

    packed, plain = pickle.dumps(of_a_user.Thing()), pickle.dumps({"a": 1})
    del sys.modules["of_a_user"]
    go_on, seen = threading.Event(), []

    def import_engine(engine):
        go_on.wait()
        seen.append("of_a_user" in sys.modules)

    monkeypatch.setattr(engine_import, "import_engine", import_engine)
    loading = EngineImport()
    loading.receive(World(rank=1, answers=ImportPlan("numpy", frozenset({1}))))
    assert loading.unpack(plain) == {"a": 1}  # does not wait
    threading.Timer(0.05, go_on.set).start()
    assert type(loading.unpack(packed)).__name__ == "Thing"
    assert seen == [False]
    del sys.modules["of_a_user"]
