"""Fixtures that run commands within this process."""

from tests.fleet.commands.conftest import fleet, refused

__all__ = ["fleet", "refused"]
