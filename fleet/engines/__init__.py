"""What computes a training step, and the table of engines; imports comm and what comm may import."""
