"""The roles of a launch and what decides for them; imports stream, engines, monitor and all below them."""
