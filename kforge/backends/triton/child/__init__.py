"""What runs in the sandbox, each file by itself: these import Triton and one another by bare names."""
