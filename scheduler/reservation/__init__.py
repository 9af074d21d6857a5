"""Which walltimes to ask for ([SPEC]); imports base, files and hulls."""
