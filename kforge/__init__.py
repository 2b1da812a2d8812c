"""kforge: the fastest correct kernel for every operator of a model on this hardware, kept, and proven in an engine."""
