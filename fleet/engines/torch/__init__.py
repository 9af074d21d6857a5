"""The engine that trains plain PyTorch modules; it alone imports PyTorch, beside what ``fleet.engines`` may import.

No process ever has TensorFlow and PyTorch.
"""
