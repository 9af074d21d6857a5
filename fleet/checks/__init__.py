"""Checks before a launch: of the ranks' placement, of each network, and dry runs.

This package imports engines, storage and spec, but never runtime.
"""
