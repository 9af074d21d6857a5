"""Which running jobs to stop so that nodes are free in time ([CoSim]); imports base, files and hulls."""
