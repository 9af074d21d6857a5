"""The ``fleet simulate`` commands, one module each; they import options, plots and ``scheduler``.

They do not import the runtime, so you can ignore them when you read the code that trains networks.
"""
