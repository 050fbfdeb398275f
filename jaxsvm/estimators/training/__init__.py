"""Train the machines of an estimator: pairs of classes, chains over C, probabilities."""
