"""How samples reach trainers: order, shared window, relay, readers; imports comm and what comm may import."""
