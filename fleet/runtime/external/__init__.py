"""Commands and trackers from outside a launch; imports what ``fleet.runtime`` may."""
