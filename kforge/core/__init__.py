"""Plain frozen data types that every room shares. Standard library only: the look-up path imports this."""
