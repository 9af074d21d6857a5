"""Compute training steps with the engines: Keras, PyTorch, NumPy, or emulated training."""
