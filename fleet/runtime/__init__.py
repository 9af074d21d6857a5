"""The roles of a launch; imports stream, engines, monitor and all below them."""
