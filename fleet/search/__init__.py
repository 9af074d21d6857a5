"""Networks that are asked for, judged and dropped while a run goes on; no MPI, no clock, no disk; imports values."""
