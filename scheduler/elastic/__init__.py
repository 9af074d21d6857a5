"""Jobs whose GPUs and batch follow the load ([ELASTIC]); imports base, files, hulls and shares."""
