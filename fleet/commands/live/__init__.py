"""Commands for running runs; imports what ``fleet.commands`` may import."""
