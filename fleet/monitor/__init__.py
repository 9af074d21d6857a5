"""Views, estimates and reports of runs, from their events and files.

This package imports domain, storage, spec and scheduler, but never runtime.
"""
