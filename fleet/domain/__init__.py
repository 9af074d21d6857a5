"""The domain of a run: its networks, its events, and the state that follows from them. Pure.

It uses no MPI, clock or disk, and imports spec and what spec may import.
"""
