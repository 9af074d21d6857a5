"""What a run is: its networks, and the events that tell what became of them. Pure: no MPI, clock or disk.

It imports spec and what spec may import.
"""
