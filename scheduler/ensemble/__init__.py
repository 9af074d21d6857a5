"""Choose which networks train together, on which GPUs ([FLEET]); imports base, files and hulls."""
