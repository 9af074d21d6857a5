"""Choose walltimes to request ([SPEC]); imports base, files and hulls."""
