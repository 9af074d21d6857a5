"""Describe Keras' optimizers, schedules, losses and metrics; imports nothing of FLEET.

Keras is not imported either: tests compare the tables with it. The row of an engine says which of
them it has, or which others (:class:`fleet.spec.engines.Known`).
"""
