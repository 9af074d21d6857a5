"""The trainer rank, and the training loop; imports what ``fleet.runtime`` may import."""
