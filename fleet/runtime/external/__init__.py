"""What others want of a launch, by files in the run's folder; imports what ``fleet.runtime`` may import."""
