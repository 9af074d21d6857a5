"""How ranks speak: messages, roles, and MPI behind two protocols; imports storage and what storage may import."""
