"""Commands to a run that is going on; imports what ``fleet.commands`` may import."""
