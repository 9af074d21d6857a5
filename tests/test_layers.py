"""Which module may import which: one table, compared with every import of the four packages.

The files are parsed, not run, so imports inside functions count, and so do imports for type
checkers, imports through a package's ``__init__``, and modules named in strings (the tables of
commands, sources and engines).
"""

import ast
import graphlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest

from tests.places import PACKAGES, ROOT, sources

TENSORFLOW = {"tensorflow", "keras", "horovod"}
TORCH = {"torch", "safetensors", "onnx"}

# The tables in which the core names companions: of commands, and of hooks.
ENTRANCES = ("fleet.__main__", "fleet.hooks")

# Subpackages inside of other subpackages.
NESTED_SUBPACKAGES = ("fleet.commands.simulate", "launch.errors")
FOR_ALL = "launch.errors"  # imports nothing, so every module may import it

# A subpackage is a folder directly below a package; a module outside of such folders counts as one,
# too. Each may import itself and the subpackages listed here.
_FAMILIES = (
    "scheduler.ensemble scheduler.idle scheduler.elastic scheduler.reservation scheduler.eviction"
)
# All of the scheduler but the simulators.
_SCHEDULER = f"scheduler.base scheduler.files scheduler.hulls scheduler.shares {_FAMILIES}"
_BELOW_SPEC = (
    "fleet fleet.package_names fleet.errors fleet.gc_pause fleet.notebook_table fleet.units "
    "fleet.terminal fleet.plugins fleet.vocabulary "
    f"preprocess {_SCHEDULER}"
)
_SPEC = f"fleet.spec {_BELOW_SPEC}"
_DOMAIN = f"fleet.domain {_SPEC}"
_STORAGE = f"fleet.storage launch {_DOMAIN}"
_COMM = f"fleet.comm {_STORAGE}"
_RUNTIME = (
    f"fleet.control fleet.search fleet.stream fleet.engines fleet.monitor fleet.prediction {_COMM}"
)
_RUN = f"fleet.runtime fleet.hooks fleet.export {_RUNTIME}"
_FAMILY = "scheduler.base scheduler.files scheduler.hulls scheduler.shares"

MAY_IMPORT = {
    "launch.errors": "",
    "launch": "",
    "preprocess.user_code": "",
    "preprocess.base": "",
    "preprocess.import_path": "preprocess.base preprocess.user_code",
    "preprocess.files": "preprocess.base",
    "preprocess.decode": "preprocess.base",
    "preprocess.transient_errors": "preprocess.base",
    "preprocess.splits": "preprocess.base",
    "preprocess.target_kinds": "",
    "preprocess.target": "preprocess.base preprocess.target_kinds",
    "preprocess.record_target": "preprocess.base preprocess.target preprocess.target_kinds",
    "preprocess.target_checks": "preprocess.base preprocess.target preprocess.target_kinds",
    "preprocess.fingerprint": "preprocess.base preprocess.target preprocess.target_kinds",
    "preprocess.division": "preprocess.base preprocess.target preprocess.views",
    "preprocess.kernels": "",
    "preprocess.lazy_numba": "preprocess.kernels",
    "preprocess.scaling": "preprocess.lazy_numba",
    "preprocess.sample": "preprocess.base preprocess.scaling preprocess.target",
    "preprocess.sources": "preprocess.base preprocess.files preprocess.decode "
    "preprocess.fingerprint "
    "preprocess.splits preprocess.transient_errors preprocess.record_target preprocess.target "
    "preprocess.target_kinds preprocess.user_code",
    "preprocess.deferred_augmentation": "preprocess.base preprocess.sample",
    "preprocess.transforms": "preprocess.import_path preprocess.base preprocess.decode "
    "preprocess.user_code "
    "preprocess.sample "
    "preprocess.deferred_augmentation",
    "preprocess.batches": "preprocess.base preprocess.sample preprocess.transforms "
    "preprocess.deferred_augmentation",
    "preprocess.chain": "preprocess.base preprocess.batches preprocess.user_code preprocess.sample "
    "preprocess.target preprocess.transforms",
    "preprocess.length_order": "",
    "preprocess.padding": "preprocess.base",
    "preprocess.records": "preprocess.base preprocess.chain preprocess.padding preprocess.sample "
    "preprocess.target preprocess.transforms preprocess.user_code",
    "preprocess.probe": "preprocess.base preprocess.chain preprocess.decode preprocess.records "
    "preprocess.sample preprocess.target preprocess.transforms",
    "preprocess.pipeline": "preprocess.base preprocess.batches preprocess.chain "
    "preprocess.lazy_numba preprocess.probe "
    "preprocess.sample preprocess.target preprocess.transforms",
    "preprocess.record_pipeline": "preprocess.base preprocess.chain preprocess.length_order "
    "preprocess.padding preprocess.pipeline preprocess.records preprocess.sample "
    "preprocess.target preprocess.transforms",
    "preprocess.moments": "preprocess.base preprocess.pipeline preprocess.sample "
    "preprocess.transforms",
    "preprocess.packing": "preprocess.base preprocess.files preprocess.pipeline preprocess.sample "
    "preprocess.target",
    "preprocess.decoded_copy": "preprocess.base preprocess.chain preprocess.packing "
    "preprocess.pipeline preprocess.sample preprocess.sources preprocess.target "
    "preprocess.transforms preprocess.views",
    "preprocess.views": "preprocess.base preprocess.padding preprocess.record_target "
    "preprocess.target",
    "preprocess.open_source": "preprocess.base preprocess.import_path preprocess.record_target "
    "preprocess.sources preprocess.target "
    "preprocess.target_checks preprocess.user_code preprocess.views",
    "preprocess.source": "preprocess.base preprocess.division preprocess.fingerprint "
    "preprocess.open_source preprocess.record_target preprocess.sources preprocess.target "
    "preprocess.views",
    "scheduler.base": "",
    "scheduler.files": "scheduler.base",
    "scheduler.hulls": "",
    "scheduler.shares": "scheduler.hulls",
    "scheduler.ensemble": f"scheduler.elastic {_FAMILY}",
    "scheduler.idle": _FAMILY,
    "scheduler.elastic": _FAMILY,
    "scheduler.reservation": _FAMILY,
    "scheduler.eviction": _FAMILY,
    "scheduler.simulation": _SCHEDULER,
    "fleet": "fleet.package_names",
    "fleet.package_names": "",
    "fleet.hooks": "fleet.errors",
    "fleet.errors": "",
    "fleet.gc_pause": "",
    "fleet.notebook_table": "",
    "fleet.units": "scheduler.base scheduler.ensemble",
    "fleet.terminal": "fleet.errors fleet.units",
    "fleet.arguments": "fleet.errors fleet.units launch",
    "fleet.plugins": "fleet.errors fleet.vocabulary preprocess scheduler.base scheduler.ensemble",
    "fleet.vocabulary": "",
    "fleet.spec": _BELOW_SPEC,
    "fleet.domain": _SPEC,
    "fleet.storage": f"launch {_DOMAIN}",
    "fleet.comm": _STORAGE,
    "fleet.prediction": _STORAGE,
    "fleet.engines": _COMM,
    "fleet.stream": _COMM,
    "fleet.search": _STORAGE,
    "fleet.control": f"fleet.search fleet.stream {_COMM}",
    "fleet.monitor": f"fleet.prediction {_STORAGE} scheduler.simulation",
    "fleet.export": f"fleet.monitor fleet.prediction fleet.predictor {_STORAGE}",  # in a model
    "fleet.sweeps": _STORAGE,
    "fleet.runtime": f"fleet.hooks fleet.export {_RUNTIME}",
    "fleet.batch_systems": _STORAGE,
    "fleet.checks": f"fleet.engines {_STORAGE}",
    "fleet.run": f"fleet.arguments fleet.batch_systems {_RUN}",
    "fleet.predictor": f"fleet.prediction fleet.engines {_COMM}",
    "fleet.live_run": _RUN,
    "fleet.local_launch": f"fleet.run fleet.batch_systems {_STORAGE}",
    "fleet.api_help": _SPEC,
    "fleet.api": "fleet.api_help fleet.predictor fleet.live_run fleet.local_launch fleet.run "
    "fleet.arguments "
    f"{_RUN}",
    "fleet.commands": "fleet.api fleet.live_run fleet.local_launch fleet.predictor fleet.run "
    "fleet.arguments "
    f"fleet.checks fleet.sweeps {_RUN} "
    "scheduler.simulation",
    "fleet.companions": "fleet.commands fleet.live_run fleet.run fleet.arguments "
    "fleet.batch_systems "
    f"{_RUN} scheduler.simulation",
    "fleet.commands.simulate": f"fleet.commands fleet.arguments fleet.storage {_BELOW_SPEC} "
    "scheduler.simulation",
    "fleet.__main__": f"fleet.commands fleet.commands.simulate fleet.arguments fleet.hooks "
    f"{_BELOW_SPEC} launch",
}


@dataclass(frozen=True)
class Import:
    """An import of a module of FLEET or of another package."""

    source: str  # the module that imports
    line: int
    target: str  # the module that is imported

    @property
    def location(self):
        return f"{path_of(self.source).relative_to(ROOT)}:{self.line}"


# ---- reading imports ---------------------------------------------------------------------------


def _modules():
    """Return module name -> file; a package has the name of its folder."""
    files = {
        path: path.relative_to(ROOT).with_suffix("")
        for package in PACKAGES
        for path in sources(package)
    }
    return {
        ".".join(location.parts).removesuffix(".__init__"): path for path, location in files.items()
    }


MODULES = _modules()


def path_of(module):
    return MODULES[module]


def subpackage(module):
    """Return the folder of a module directly below its package, or the module itself."""
    for name in NESTED_SUBPACKAGES:
        if f"{module}.".startswith(f"{name}."):
            return name
    package, _, tail = module.partition(".")
    first = tail.partition(".")[0]
    if package == "launch" or not first:
        return package
    return f"{package}.{first}"


def imported(text, module="m", is_package=False):
    """Yield (line, name) of all imports in a module's text, including names in strings."""
    names_ = module if is_package else module.rpartition(".")[0]
    tree = ast.parse(text)
    started = set(_started(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = names_.rsplit(".", node.level - 1)[0] if node.level else ""
            origin = ".".join(filter(None, [base, node.module]))
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in started
            and re.fullmatch(r"[a-z_]\w*(\.\w+)*(:\w+)?", node.value)
        ):
            yield node.lineno, node.value.partition(":")[0]


def _started(tree):
    """Yield the modules that a command line starts as a process, which follow ``-m``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            yield from (
                name
                for option, name in pairwise(node.elts)
                if isinstance(option, ast.Constant) and option.value == "-m"
            )


def _resolved(name, behind):
    """Return the modules of a dotted name; for an ``__init__`` also the defining module."""
    module = name
    while module and module not in MODULES:
        module = module.rpartition(".")[0]
    if not module:
        return []
    through = behind.get(module, {}).get(name.removeprefix(f"{module}.").partition(".")[0], "")
    return [module, *(_resolved(through, behind) if through else [])]


@cache
def _imports():
    """Return all imports of a module by another one, and module -> the names it imports."""
    texts = {module: path.read_text(encoding="utf-8") for module, path in MODULES.items()}
    named = {
        module: list(imported(text, module, path_of(module).name == "__init__.py"))
        for module, text in texts.items()
    }
    behind = {
        module: {name.rpartition(".")[2]: name for _, name in named[module]}
        for module, path in MODULES.items()
        if path.name == "__init__.py"
    }
    packages = []
    for module, names in named.items():
        for line, name in names:
            if name.partition(".")[2] or name in PACKAGES:
                packages += [Import(module, line, target) for target in _resolved(name, behind)]
    return [
        imports
        for imports in packages
        if imports.source != imports.target
        and not _is_word(imports)
        and not _is_entrance(imports, texts)
    ], named


def _is_word(imports):
    """Return True if a string only happens to be a package's name."""
    return imports.target in PACKAGES


def _is_entrance(imports, texts):
    """Return True if a table of the core names a companion, which it does not import."""
    quoted = rf"[\"']{re.escape(imports.target)}\b"
    line = texts[imports.source].splitlines()[imports.line - 1]
    return imports.source in ENTRANCES and bool(re.search(quoted, line))


# ---- the rule ----------------------------------------------------------------------------------


def test_table_has_every_subpackage():
    subpackages = {subpackage(module) for module in MODULES}
    assert subpackages - {"preprocess", "scheduler"} == set(MAY_IMPORT)


def test_subpackages_import_only_what_the_table_allows():
    def allowed(imports):
        source, target_ = subpackage(imports.source), subpackage(imports.target)
        words = MAY_IMPORT.get(source, "").split()
        return (
            target_ in (source, FOR_ALL)
            or target_ in words
            or target_.partition(".")[0] in set(words) - {"fleet"}
        )

    assert [
        f"{imports.location}: {subpackage(imports.source)} may not import {imports.target}"
        for imports in _imports()[0]
        if not allowed(imports)
    ] == []


def test_core_names_companions_only_in_its_two_tables():
    assert [
        f"{path_of(module).relative_to(ROOT)}:{line}: {name}"
        for module, imports in _imports()[1].items()
        if not module.startswith("fleet.companions")
        for line, name in imports
        if f"{name}.".startswith("fleet.companions.")
        and not (module in ENTRANCES and _is_text(path_of(module), line, name))
    ] == []


def find_cycle(edges):
    """Return a cycle among (from, to) pairs, with its first element repeated; empty if none."""
    before = {}
    for source, target in edges:
        before.setdefault(source, set()).add(target)
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]
    return []


def test_imports_of_files_have_no_cycle():
    imports = find_cycle((imports.source, imports.target) for imports in _imports()[0])
    location = {(imports.source, imports.target): imports.location for imports in _imports()[0]}
    assert [location[pair] for pair in pairwise(imports)] == []


def test_imports_of_subpackages_have_no_cycle():
    pairs = {
        (subpackage(imports.source), subpackage(imports.target)): imports.location
        for imports in _imports()[0]
        if subpackage(imports.source) != subpackage(imports.target)
    }
    imports = find_cycle(pairs)
    assert [pairs[pair] for pair in pairwise(imports)] == []


def test_only_rank_zero_and_coordinator_import_monitor():
    assert {
        imports.source
        for imports in _imports()[0]
        if subpackage(imports.source) == "fleet.runtime"
        and subpackage(imports.target) == "fleet.monitor"
    } == {"fleet.runtime.rank_zero", "fleet.runtime.coordinator"}


def test_folders_document_what_they_import():
    texts = {
        module: path.read_text(encoding="utf-8")
        for module, path in MODULES.items()
        if path.name == "__init__.py" and module != "fleet"
    }
    assert [
        module
        for module, text in texts.items()
        if not re.search(r"\bimports?\b", ast.get_docstring(ast.parse(text)) or "")
    ] == []


# Modules that decide in a launch get times, ranks and files as inputs, and access none of them.
PURE = {
    "fleet.control",
    "fleet.search",
    "fleet.comm.messages",
    "fleet.comm.roles",
    "fleet.errors",
    "fleet.spec",
    "fleet.domain",
    "fleet.stream.layout",
    "fleet.units",
    "launch.errors",
    "scheduler",
}
PURE_ELSEWHERE = {
    "__future__",
    "collections",
    "dataclasses",
    "enum",
    "heapq",
    "itertools",
    "typing",
}


# Modules of companions that decide, too.
PURE_COMPANIONS = (
    "fleet.companions.node_release.release",
    "fleet.companions.shared_run.lease_requests",
)


def test_deciding_modules_import_nothing_that_acts():
    def is_pure(name):
        return any(name == pure or name.startswith(f"{pure}.") for pure in PURE | PURE_ELSEWHERE)

    assert [
        f"{path_of(module).relative_to(ROOT)}:{line}: {name}"
        for module, imports in _imports()[1].items()
        if subpackage(module) == "fleet.control" or module in PURE_COMPANIONS
        for line, name in imports
        if not is_pure(name) and not _is_text(path_of(module), line, name)
    ] == []


# ---- other packages ----------------------------------------------------------------------------


def _importing(names, subpackages):
    """Return where modules outside of some subpackages import one of these packages."""
    return [
        f"{path_of(module).relative_to(ROOT)}:{line}: {name}"
        for module, imports in _imports()[1].items()
        for line, name in imports
        if name.partition(".")[0] in names
        and not module.startswith(subpackages)
        and not _is_text(path_of(module), line, name)
    ]


def _is_text(path, line, name):
    """Return True if a name is quoted on its line, and not in a call that imports it."""
    text = path.read_text(encoding="utf-8").splitlines()[line - 1]
    return bool(re.search(rf"['\"]{re.escape(name)}\b", text)) and not re.search(
        r"import_module|__import__", text
    )


@pytest.mark.parametrize(
    "text",
    [
        "import mpi4py.MPI",
        "from mpi4py import MPI",
        "import numpy, mpi4py as door",
        "__import__('mpi4py')",
        "importlib.import_module('mpi4py.MPI')",
        "def function():\n    if True:\n        from mpi4py import MPI",
        "if TYPE_CHECKING:\n    from mpi4py import MPI",
    ],
)
def test_imports_of_all_forms_are_found(text):
    assert "mpi4py" in {name.partition(".")[0] for _, name in imported(text)}


def test_mpi_is_imported_by_one_package_only():
    assert _importing({"mpi4py"}, ("fleet.comm.",)) == []


def test_libraries_are_imported_by_one_engine_each():
    assert _importing(TENSORFLOW, ("fleet.engines.keras.",)) == []
    assert _importing(TORCH, ("fleet.engines.torch.",)) == []


# Libraries of makers of GPUs, asked if they are installed, by one module.
ASKED = {"launch.gpu_libraries": {"pynvml", "amdsmi"}}


def test_launch_imports_only_the_standard_library():
    foreign = {
        name.partition(".")[0]
        for module, imports in _imports()[1].items()
        if subpackage(module) == "launch"
        for line, name in imports
        if not _is_text(path_of(module), line, name) and name not in ASKED.get(module, ())
    }
    assert foreign - {"launch"} <= sys.stdlib_module_names


# ---- what a command loads ----------------------------------------------------------------------


def loads(statements, tmp_path, *more):
    """Return the slow packages, and those in ``more``, that some statements load."""
    loaded = tmp_path / "loaded.json"
    program = (
        f"{statements}\nimport json, sys\njson.dump([*sys.modules], open({str(loaded)!r}, 'w'))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr
    return {name.split(".")[0] for name in json.loads(loaded.read_text())} & {
        "mpi4py",
        *TENSORFLOW,
        *TORCH,
        *more,
    }


SPEC = """
data: {source: "tests.sources:numbered", path: "30", transforms: []}
models: [{family: resnet, args: {blocks: [1]}, grid: {width: [8, 16]}}, {family: softmax}]
train: {batch: {size: 8}}
"""

RATES = (
    """{"samples_per_epoch": 100, "gpus_per_node": 2, "models": [{"name": "a", "rates": [10.0]}]}"""
)


FILES = {
    "spec.yaml": SPEC,
    "rates.json": RATES,
    "idle.csv": "t_s,node,delta\n0,0,1\n0,1,1\n100,1,-1\n",
    "jobs.json": '{"gpus": 2, "jobs": [{"arrival_min": 0, "length_min": 30, "scaling": [1, 1.5]}]}',
    "trainers.json": """{"curves": {"net": {"nodes": [0, 2], "samples_per_s": [0, 20]}},
                         "jobs": [["net", 0, 5, 2, 1, 2, 9]]}""",
}


def test_declaring_arguments_loads_no_mpi_or_tensorflow(tmp_path):
    assert (
        loads(
            "from fleet.__main__ import COMMANDS, make_parser\nfor name in COMMANDS:\n"
            "    make_parser(name)",
            tmp_path,
        )
        == set()
    )


@pytest.mark.parametrize(
    ("command", "loaded"),
    [
        pytest.param("check spec.yaml", {"pydantic"}, marks=pytest.mark.long),
        ("check --families", {"pydantic"}),
        ("schema", {"pydantic"}),
        ("--help", set()),
        ("plan --rates rates.json --gpus 2 --gpus-per-node 2", set()),
        ("reserve --distribution uniform --low 0 --high 3", set()),
        ("simulate autoscale --jobs jobs.json", set()),
        ("simulate idle-nodes --events idle.csv --trainers trainers.json --json", set()),
    ],
)
def test_commands_load_no_more_than_they_need(command, loaded, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert (
        loads(
            f"import fleet.__main__ as m; assert m.main({command.split()!r}) == 0",
            tmp_path,
            "pydantic",
            "scipy",
            "numba",
            "matplotlib",
        )
        == loaded
    )


def test_help_of_the_main_job_starts_no_mpi(tmp_path):
    assert (
        loads(
            "import fleet.run as r\ntry: r.main(['--help'])\n"
            "except SystemExit as end: assert end.code == 0",
            tmp_path,
        )
        == set()
    )
