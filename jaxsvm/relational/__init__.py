"""Train SVMs over a database join that is never formed.

    join = relational.Join({"sales": sales, "shops": shops, "days": days}, label=("sales", "returned"))
    fit = relational.fit(join, C=1.0, scale="standard")
    fit.certificate     # dual <= optimum <= primal, of the whole join
    fit.to_sql()        # the query that scores it in the database

If every dimension table has unique keys, the join has as many rows as the fact table, and the fit is exact. If keys
repeat on both sides of a join (orders and clicks of a customer), it may have 10^12 rows; the cost of a step depends on
the size of the tables only.
"""

from jaxsvm.relational.descent.fit import RelationalFit, Stability, fit, fit_path, stability
from jaxsvm.relational.descent.rows import Design, Scorer, design, load, sample
from jaxsvm.relational.gradient.engine import PseudoGradient, far_counts, gradient_interval, pseudo_gradient
from jaxsvm.relational.schema.join import Join, Moments, from_database

__all__ = [
    "Design", "Join", "Moments", "PseudoGradient", "RelationalFit", "Scorer", "Stability", "design",
    "far_counts", "fit", "fit_path", "from_database", "gradient_interval", "load", "pseudo_gradient", "sample",
    "stability",
]  # fmt: skip
