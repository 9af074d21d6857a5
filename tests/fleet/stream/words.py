"""Words of shared memory between any two accesses of which another rank may have its turn."""

import numpy as np


class Words(np.ndarray):
    """An array that calls ``before`` ahead of every access: reading, writing, comparing, reducing, copying.

    What an access gives is a copy of its own, or a view that is such an array itself.
    """

    before = None

    def __array_finalize__(self, parent):
        self.before = getattr(parent, "before", None)

    def _accessed(self):
        if self.before is not None:
            self.before()
        return self.view(np.ndarray)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return super().__getitem__(place)  # a view, of which nothing is read yet
        return self._accessed()[place]

    def __setitem__(self, place, value):
        self._accessed()[place] = value

    def __array_ufunc__(self, function, method, *inputs, **options):
        plain = [part._accessed() if isinstance(part, Words) else part for part in inputs]
        return getattr(function, method)(*plain, **options)

    def __array_function__(self, function, types, args, kwargs):
        plain = [part._accessed() if isinstance(part, Words) else part for part in args]
        return function(*plain, **kwargs)

    def copy(self, order="C"):
        return self._accessed().copy(order)

    def tolist(self):
        return self._accessed().tolist()


def watched(words, before):
    """The same memory, each access to which calls ``before`` first."""
    results = words.view(Words)
    results.before = before
    return results
