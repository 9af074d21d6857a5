"""Where samples come from, one module for each kind; imports the modules of ``preprocess`` but
``preprocess.source``.
"""
