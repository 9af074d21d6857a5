"""Compute training steps; holds the table of engines. Imports comm and what comm may import."""
