"""What the models of a run were asked, what came of it, what it cost: facts, and a section of the report."""
