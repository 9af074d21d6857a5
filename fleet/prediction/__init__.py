"""Finished networks as one: what they gave for samples, which of them go together, and how good that is.

It imports ``fleet.storage`` and what is below. What loads networks is above: :mod:`fleet.predictor`.
"""
