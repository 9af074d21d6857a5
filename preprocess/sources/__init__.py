"""Sources of samples, one module per kind; imports no ``preprocess.source`` or ``open_source``."""
