"""One module for each ``fleet simulate`` command; imports what ``fleet.commands`` may import."""
