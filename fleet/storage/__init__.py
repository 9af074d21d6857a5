"""Every file of a run, and who may write it; imports spec and what spec may import."""
