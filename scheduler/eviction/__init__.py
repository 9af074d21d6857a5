"""Choose which jobs or groups make room, and how ([COSIM]); imports base and files."""
