"""Train networks with PyTorch; no other part of FLEET imports PyTorch."""
