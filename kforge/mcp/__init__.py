"""kforge for coding agents: the same verbs as the command line, over the Model Context Protocol."""
