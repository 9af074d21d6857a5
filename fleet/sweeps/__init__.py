"""Read the searches of other tools, and write them as entries of a spec.

Each format has a module: :mod:`fleet.sweeps.wandb_sweep`, :mod:`fleet.sweeps.optuna_study`,
:mod:`fleet.sweeps.determined_experiment` and :mod:`fleet.sweeps.keras_tuner_project`. They return a
:class:`fleet.sweeps.sweep.Sweep`, and :mod:`fleet.sweeps.spec_file` writes it. Libraries of other
tools are imported only to read their files. Nothing here imports an engine or MPI.
"""
