"""Messages, roles and MPI communication; imports storage and what storage may import."""
