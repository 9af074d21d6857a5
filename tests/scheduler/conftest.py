"""Fixtures of tests that use files."""

import pytest


@pytest.fixture
def write(tmp_path):
    """Write a file and return its path."""

    def write(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
