"""One module for each ``fleet simulate`` command, and what draws for them; imports options, plots and ``scheduler``.

Of the rooms of ``fleet`` it needs no runtime, so whoever reads what trains can leave it out.
"""
