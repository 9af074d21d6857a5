"""Pinned memory, with a fake driver."""

import mmap

import pytest

from launch.pinned_memory import LIBRARIES, Pinning
from tests.launch.drivers import Driver


@pytest.mark.parametrize("prefix", ["cuda", "hip"])
def test_pinning_registers_memory_on_the_gpu(tmp_path, monkeypatch, prefix):
    driver, message = Driver(tmp_path, monkeypatch, prefix), []
    pin = Pinning(3, message.append, driver.libraries)
    for size in (4096, 12345):
        pin(mmap.mmap(-1, size))
    assert driver.calls() == [("device", 3), ("memory", 4096), ("memory", 12345)]
    assert message == []


def test_pinning_accepts_memory_that_is_already_pinned(tmp_path, monkeypatch):
    driver, message = Driver(tmp_path, monkeypatch, status=712), []
    Pinning(0, message.append, driver.libraries)(mmap.mmap(-1, 1))
    assert message == []


def test_pinning_warns_once_about_refused_memory(tmp_path, monkeypatch):
    driver, message = Driver(tmp_path, monkeypatch, status=2), []
    pin = Pinning(0, message.append, driver.libraries)
    for _ in range(3):
        pin(mmap.mmap(-1, 4096))
    assert message == ["cudaHostRegister gives error 2"]
    assert len(driver.calls()) == 4


def test_pinning_warns_once_without_a_usable_driver():
    message = []
    for libraries in ((), [("libc.so.6", "cuda")], [("libnone.so", "hip")]):
        pin = Pinning(0, message.append, libraries)
        pin(mmap.mmap(-1, 1))
        pin(mmap.mmap(-1, 1))
    assert message == 3 * ["neither cudaHostRegister nor hipHostRegister is there"]
    assert {begins for _, begins in LIBRARIES} == {"cuda", "hip"}
