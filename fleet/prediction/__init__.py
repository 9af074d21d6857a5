"""Combine finished networks: saved predictions, choice of ensembles, and scores.

It imports ``fleet.storage`` and lower layers. :mod:`fleet.predictor` loads the networks.
"""
