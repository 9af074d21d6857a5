"""Arrays of shared memory that let another rank run before each access."""

import numpy as np


class Words(np.ndarray):
    """An array that calls ``before`` ahead of every access: read, write, comparison, copy.

    An access returns a copy, or a view that is such an array itself.
    """

    before = None

    def __array_finalize__(self, parent):
        self.before = getattr(parent, "before", None)

    def _accessed(self):
        if self.before is not None:
            self.before()
        return self.view(np.ndarray)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return super().__getitem__(index)  # a view, of which nothing is read yet
        return self._accessed()[index]

    def __setitem__(self, index, value):
        self._accessed()[index] = value

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
    """Return a view of an array; each access to it calls ``before`` first."""
    view = words.view(Words)
    view.before = before
    return view
