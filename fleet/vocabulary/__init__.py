"""Keras' optimizers, schedules, losses and metrics, as the rows of engines know them; imports nothing of ours.

Keras is not imported for them: tests compare them with what it has. Which of them an engine has, or which others, says
its row (:class:`fleet.spec.engines.Known`).
"""
