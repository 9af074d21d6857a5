"""Sources of samples, one module for each kind; imports every module but ``preprocess.source``."""
