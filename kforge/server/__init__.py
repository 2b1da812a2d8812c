"""``kforge serve``: an engine behind OpenAI's HTTP interface."""
