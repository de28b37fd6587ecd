"""One experiment, from its settings to its table: pieces, plan, train, evaluate, load."""
