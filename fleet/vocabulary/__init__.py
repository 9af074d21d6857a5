"""Describe Keras' optimizers, schedules, losses and metrics; imports nothing of FLEET.

Keras is not imported either; tests compare the tables with it. An engine lists which of them it
supports, and further ones of its own (:class:`fleet.spec.engines.Known`).
"""
