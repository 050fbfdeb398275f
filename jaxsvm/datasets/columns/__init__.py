"""Tables as people have them, with index columns, texts and missing values, and how points are made of them."""
