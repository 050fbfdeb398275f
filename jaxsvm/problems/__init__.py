"""Problems: what a Gram operator and labels make, each with its certificate."""
