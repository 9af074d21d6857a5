"""What a run has come to, for other tools: tables, and the trackers that people know.

It imports ``fleet.monitor`` and what is below. The libraries of trackers are imported only where one is written, so
nothing here needs TensorFlow, nor they each other.
"""
