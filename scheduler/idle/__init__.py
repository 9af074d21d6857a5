"""Trainers on nodes that come and go ([BFTrainer]); imports base, files and hulls."""
