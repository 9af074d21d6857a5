"""What all batch jobs of FLEET share: options, launches and notes; imports storage and launch."""
