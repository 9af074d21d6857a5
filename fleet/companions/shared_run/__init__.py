"""Launches that share a run: each trains the networks whose lease it holds; imports runtime."""
