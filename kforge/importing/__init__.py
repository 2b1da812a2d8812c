"""Functions from outside made into operators: loaded, exported and lowered by a confined child, validated here."""
