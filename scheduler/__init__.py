"""Pure scheduling algorithms and the simulator: values in, values out."""
