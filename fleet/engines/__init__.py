"""Compute training steps with Keras, PyTorch or NumPy, or emulate them.

Imports comm and what comm may import.
"""
