"""The GPUs that a rank may use, on made-up machines."""

import sys
from types import SimpleNamespace

import pytest

from launch import gpu_libraries
from launch.devices import describe_devices, find_maker, gpus_per_node, memory_mib, visible_gpus
from launch.gpus import AMD, INTEL, MAKERS, NVIDIA
from launch.sites import SITES
from tests.launch.test_numa import machine

GIB = 2**30
VARIABLES = [(maker, group[0]) for maker in MAKERS.values() for group in maker.variables]


class Node:
    """The folders ``/sys`` and ``/dev`` of a machine.

    Args:
        root: the folder to make them in.
        nvidia: number of NVIDIA's GPUs.
        amd: memory of each of AMD's GPUs, in the order of the driver's topology.
        intel: PCI address of each of Intel's cards -> number of its tiles.
    """

    def __init__(self, root, nvidia=0, amd=(), intel=None):
        self.sys, self.dev = root / "sys", root / "dev"
        (self.dev / "dri").mkdir(parents=True)
        for name in (*(f"nvidia{index}" for index in range(nvidia)), "nvidiactl", "null"):
            (self.dev / name).touch()
        devices = {}
        topology = self.sys / "class/kfd/kfd/topology/nodes"
        for index in range(len(amd)):
            bus = 0x80 - index  # not in the order of the bus
            devices[f"0000:{bus:02x}:00.0"] = (AMD.vendor, "0x038000", index % 2)
            (node := topology / str(index + 1)).mkdir(parents=True)
            (node / "properties").write_text(
                f"simd_count 440\ndomain 0\nlocation_id {bus << 8}\n"
                f"drm_render_minor {128 + index}\n"
            )
            (self.dev / f"dri/renderD{128 + index}").touch()
        if amd:
            (topology / "0").mkdir()
            (topology / "0/properties").write_text("cpu_cores_count 64\nsimd_count 0\n")
            (self.dev / "kfd").touch()
        for address in intel or {}:
            devices[address] = (INTEL.vendor, "0x038000", 0)
        machine(self.sys, {0: "0-1", 1: "2-3"}, devices)
        pci = self.sys / "bus/pci/devices"
        for index, size in enumerate(amd):
            (pci / f"0000:{0x80 - index:02x}:00.0/mem_info_vram_total").write_text(f"{size}\n")
        for index, (address, tiles) in enumerate((intel or {}).items()):
            (pci / address / f"drm/renderD{140 + index}").mkdir(parents=True)
            for tile in range(tiles):
                (pci / address / f"tile{tile}").mkdir()
            (pci / address / f"drm/card{index}").mkdir()
            (pci / address / f"drm/card{index}/lmem_total_bytes").write_text(str(tiles * 64 * GIB))
            (self.dev / f"dri/renderD{140 + index}").touch()

    def visible(self, environment, device="auto"):
        return visible_gpus(environment, device, self.sys, self.dev)

    def maker(self, environment):
        return find_maker(environment, "auto", self.sys, self.dev)


PONTE_VECCHIO = {"0000:18:00.0": 2, "0000:9a:00.0": 2}


@pytest.mark.parametrize(("maker", "variable"), VARIABLES)
def test_visible_gpus_follow_the_launchers_choice(tmp_path, maker, variable):
    node = Node(tmp_path, nvidia=4)
    assert node.visible({variable: "2, 3"}, maker.device) == ("2", "3")
    assert Node(tmp_path / "bare").visible({variable: "2, 3"}) == ("2", "3")


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        ("", ()),
        ("-1", ()),
        ("1,-1,2", ("1",)),
        ("0,,2", ("0",)),
        ("GPU-8a,MIG-b", ("GPU-8a", "MIG-b")),
    ],
)
def test_visible_gpus_stop_at_an_invalid_name_as_in_cuda(tmp_path, value, visible):
    assert Node(tmp_path, nvidia=4).visible({"CUDA_VISIBLE_DEVICES": value}) == visible


@pytest.mark.parametrize(
    ("variables", "visible"),
    [
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, ("4", "5")),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, ("5",)),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "1"}, ("5",)),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ("0",)),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "4,5"}, ()),
    ],
)
def test_visible_gpus_of_amd_are_chosen_twice(tmp_path, variables, visible):
    assert Node(tmp_path, amd=[64 * GIB] * 8).visible(variables) == visible


def test_visible_gpus_are_all_of_the_node_by_default(tmp_path):
    assert Node(tmp_path / "4", nvidia=4).visible({}) == ("0", "1", "2", "3")
    assert Node(tmp_path / "12", nvidia=12).visible({}) == tuple(map(str, range(12)))
    assert Node(tmp_path / "amd", amd=[64 * GIB] * 2).visible({}) == ("0", "1")
    assert Node(tmp_path / "intel", intel=PONTE_VECCHIO).visible({}) == ("0", "1", "2", "3")
    assert Node(tmp_path / "0").visible({}) == ()


def test_visible_gpus_leave_out_graphics_of_processors(tmp_path):
    graphics = Node(tmp_path / "intel", intel={"0000:00:02.0": 1, "0000:03:00.0": 1})
    assert graphics.visible({}) == ("1",)
    assert Node(tmp_path / "amd", amd=[GIB // 2]).visible({}) == ()


def test_visible_gpus_are_cards_where_intel_shows_cards(tmp_path):
    node = Node(tmp_path, intel=PONTE_VECCHIO)
    cards = {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}
    assert node.visible(cards) == ("0", "1")
    assert node.visible({**cards, "ZE_AFFINITY_MASK": "0.0,0.1,1"}) == ("0", "1")
    assert node.visible({"ZE_AFFINITY_MASK": "0,3"}) == ("0", "3")


def test_visible_gpus_are_those_of_the_named_device(tmp_path):
    node = Node(tmp_path, nvidia=2, amd=[64 * GIB])
    assert [node.visible({}, device) for device in ("auto", "cuda", "rocm", "xpu", "cpu")] == [
        ("0", "1"),
        ("0", "1"),
        ("0",),
        (),
        (),
    ]


def test_find_maker_prefers_hardware_to_variables(tmp_path):
    # Slurm may set the variables of all makers.
    variables = {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0", "ZE_AFFINITY_MASK": "0"}
    assert Node(tmp_path / "amd", amd=[64 * GIB]).maker(variables) is AMD
    assert Node(tmp_path / "intel", intel=PONTE_VECCHIO).maker(variables) is INTEL
    bare = Node(tmp_path / "bare")
    assert bare.maker(variables) is NVIDIA
    assert bare.maker({"ZE_AFFINITY_MASK": "0"}) is INTEL
    assert bare.maker({}) is None


def test_memory_mib_is_read_from_the_system(tmp_path):
    node = Node(tmp_path, amd=[64 * GIB, 128 * GIB], intel=PONTE_VECCHIO)
    assert memory_mib("1", AMD, {}, node.sys) == 128 * 1024
    assert memory_mib("3", INTEL, {}, node.sys) == 64 * 1024
    assert memory_mib("7", AMD, {}, node.sys) is None


@pytest.fixture
def libraries(monkeypatch):
    """Install made-up libraries of NVIDIA and AMD, for one GPU of 80 GiB each."""
    monkeypatch.setitem(
        sys.modules,
        "pynvml",
        SimpleNamespace(
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetHandleByUUID=lambda name: {"GPU-8a": 0}[name],
            nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=[80 * GIB][handle]),
        ),
    )
    monkeypatch.setitem(
        sys.modules,
        "amdsmi",
        SimpleNamespace(
            amdsmi_init=lambda: None,
            AmdSmiMemoryType=SimpleNamespace(VRAM=0),
            amdsmi_get_processor_handles=lambda: ["other", "this"],
            amdsmi_get_gpu_device_bdf={"other": "0000:01:00.0", "this": "0000:80:00.0"}.get,
            amdsmi_get_gpu_memory_total=lambda handle, kind: {"this": 80 * GIB}[handle],
        ),
    )
    for library in (gpu_libraries.nvml, gpu_libraries.amdsmi):
        library.cache_clear()
    yield
    for library in (gpu_libraries.nvml, gpu_libraries.amdsmi):
        library.cache_clear()


def test_memory_mib_is_asked_of_the_makers_libraries(tmp_path, libraries):
    assert memory_mib("0") == memory_mib("GPU-8a") == 80 * 1024
    assert memory_mib("1", ask=lambda command: "[N/A]") is None
    node = Node(tmp_path, amd=[64 * GIB])
    assert memory_mib("0", AMD, {}, node.sys) == 80 * 1024


def test_describe_devices_has_a_line_for_each(tmp_path):
    node = Node(tmp_path, amd=[64 * GIB] * 2)
    lines = describe_devices({"ROCR_VISIBLE_DEVICES": "1"}, node.sys, node.dev)
    assert list(lines) == ["cuda", "rocm", "xpu", "cpu"]
    assert lines["rocm"] == (
        "2 GPUs of AMD, 1 visible (ROCR_VISIBLE_DEVICES=1), 65536 MiB each, amdsmi is not installed"
    )
    assert lines["xpu"] == "no GPU of Intel"
    assert "core" in lines["cpu"]


@pytest.mark.parametrize("name", [name for name, site in SITES.items() if site.visible])
def test_visible_gpus_of_sites_are_those_that_their_jobs_list(tmp_path, name):
    site = SITES[name]
    nodes = {
        "frontier": Node(tmp_path / "frontier", amd=[64 * GIB] * 8),
        "aurora": Node(
            tmp_path / "aurora", intel={f"0000:{bus:02x}:00.0": 2 for bus in range(0x18, 0x1E)}
        ),
    }
    settings = dict(
        line.split("#")[0].removeprefix("export ").strip().split("=") for line in site.setup
    )
    listed = ",".join(map(str, range(site.gpus)))
    for environment in (settings, {**settings, site.visible: listed}):
        assert len(nodes[name].visible(environment)) == site.gpus


@pytest.mark.parametrize(
    ("visible", "node_of", "count"),
    [
        ([["0", "1"], ["0", "1"]], [0, 0], 2),  # each rank sees all
        ([["0"], ["1"], ["2"]], [0, 0, 0], 3),  # each rank sees a different one
        ([["0"], [], ["0"], ["1"]], [0, 0, 1, 1], 2),  # the node with most GPUs
        ([[], []], [0, 1], None),
    ],
)
def test_gpus_per_node_unites_the_gpus_of_its_ranks(visible, node_of, count):
    assert gpus_per_node(visible, node_of) == count
