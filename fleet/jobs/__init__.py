"""What surrounds a launch: chains of batch jobs, findings, rehearsals; imports engines, storage and spec, never
runtime.
"""
