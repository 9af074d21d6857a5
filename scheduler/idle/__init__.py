"""Trainers on nodes that come and go ([BFTrainer]); imports base, files, hulls and shares."""
