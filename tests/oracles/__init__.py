"""Published algorithms against which FLEET's are tested and timed; FLEET does not use them."""
