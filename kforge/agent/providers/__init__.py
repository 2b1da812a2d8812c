"""Ways to language models: the official SDKs, imported when the first call is made, and replays of recorded calls."""
