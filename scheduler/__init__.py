"""Pure scheduling algorithms and their simulator; imports none of the other packages."""
