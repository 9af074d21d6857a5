"""Export the results of a run: tables, and the trackers MLflow, W&B and Optuna.

This package imports ``fleet.monitor`` and what is below. Libraries of trackers are imported only
when they are written, so nothing here needs TensorFlow, or another tracker's library.
"""
