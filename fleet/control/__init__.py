"""What is to be done next in a launch, as a pure object: no MPI, no clock, no disk; imports values of other rooms."""
