"""The path of samples to trainers: order, window, relay, readers; imports comm and below."""
