"""The start of a launch in five steps, each a function from one value to the next.

1. :mod:`~fleet.runtime.startup.request`: the command line, and the spec that it names.
2. :mod:`~fleet.runtime.startup.past`: what earlier launches of the run have left.
3. :mod:`~fleet.runtime.startup.data`: the data, and its fingerprint.
4. :mod:`~fleet.runtime.startup.memory`: how samples are stored, and the window of the stream.
5. :mod:`~fleet.runtime.startup.launch`: what each rank needs for its role.

:mod:`~fleet.runtime.startup.prepare` takes these steps on rank 0. The package imports what
:mod:`fleet.runtime` imports.
"""
