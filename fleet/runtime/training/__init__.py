"""The trainer rank and its training loop; imports what ``fleet.runtime`` may import."""
