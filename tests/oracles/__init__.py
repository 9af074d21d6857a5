"""Published algorithms, beside which ours are tested and timed; nobody who wants an answer needs them."""
