"""Pure scheduling algorithms and the simulator, values in, values out; imports none of the other packages."""
