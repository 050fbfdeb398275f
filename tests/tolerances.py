"""Named tolerances, each with its reason.  T1 to T20 are the properties of the Frank-Wolfe iteration
that `test_frank_wolfe.py` and `test_oracle.py` check; each is said here.

Relative unless the name or the reason says otherwise.  All are for float64, except the last group.
"""

# The oracle itself.
ORACLE_GAP = 1e-12  # relative duality gap of the truth: five digits below the tightest tolerance it judges
ORACLE_ASSERTED_GAP = 1e-10  # the oracle raises above this, so no test can silently use a bad truth
ORACLE_KKT = 1e-9  # stationarity of s over R, on problems with stiffness up to 1e6
ENCLOSING_BALL_GAP = 1e-10  # upper minus lower bound of the squared radius, of the squared spread
PEER_OBJECTIVE = 1e-8  # primal value of scikit-learn or SciPy at its tightest practical setting
PEER_COEFFICIENTS = 1e-5  # w, b of liblinear (measured 3e-8): square root of its objective error

# The acceptance test: every solver against the oracle.
ACCEPTED_GAP = 1e-8  # certified relgap asked of an exact solver before solutions are compared (T16)
OBJECTIVE_AT_ACCEPTED_GAP = 1e-8  # R/R* - 1 <= relgap, so the objective is at least as close as the certificate
# T16 prints 1e-4 on h/R at relgap 1e-8.  That is no bound: pair steps stopped at 1e-8 were off by up to 1e-3 (23 of 74
# random problems above 1e-4).  Sound: oracle.decision_radius(diagonal, relgap, optimum).  1e-4 holds at 1e-11.
DECISION = 1e-4  # h/R, only together with DECISION_GAP
DECISION_GAP = 1e-11  # the error is a square root of the gap: 1e-3 at 1e-8 becomes 3e-5
DECISION_CLEAR = 1e-3  # T16: no label may flip where |h|/R is above this

# Invariants of a step.
SIMPLEX_SUM = 1e-12  # T1: |sum alpha - 1| after 2e4 steps: rounding of 2e4 rescalings with a wide margin
SIMPLEX_NEGATIVE = 0.0  # T1: hard; weights are clamped and dropped to exact zeros
MONOTONE = 1e-14  # T2: times Delta^2: one rounding of R on the scale of the diagonal
DRIFT = 1e-9  # T3: incremental R and s against their definitions over 2e4 steps, C <= 1e3 (measured 1.5e-10 over 1e5)
STEP_DECREASE = 1e-12  # T4: per-step decrease against G^2/(4q), of Delta^2; both are a handful of roundings
RADIUS_FORMULA = 1e-12  # T4: published radius formulas against direct evaluation (measured 1e-15)
LINE_SEARCH = 1e-6  # T5: times the bound: a bounded scalar minimiser finds its argument to the square root of eps
FW_GAP_BOUND = 1e-10  # T6: 0 <= R - R* <= G and P - D = G/2, of Delta^2
CERTIFICATE_BOUND = 1e-9  # T7: slack in relgap >= R/R* - 1
CERTIFICATE_FORMULA = 1e-8  # T7: O(m) formula against the direct P/D - 1, relative to 1 + gap (measured 5e-11)
SUBLINEAR = 1e-12  # T9: slack of h_k <= 4 diam2 / (k' + 4 diam2 / h_0), of diam2
COVERED_BALL = 1e-10  # T14: max gamma^2 <= (1+eps)^2 r^2 at the stop, of Delta^2
C_MONOTONE = 1e-10  # T17: R*(C) non-increasing and its bounds
INVARIANCE_GAP = 1e-10  # T18: relgap asked before permuted or flipped problems are compared
INVARIANCE = (
    1e-4  # T18: alpha (of its maximum) and h at relgap 1e-10; two solver runs differ by a square root of the gap
)
PUBLISHED_FORM = 1e-10  # T19: canonical against published iterates over 500 steps (measured 9e-14)
SAMPLING_BAND = (0.945, 0.96)  # T20: 0.9515 to 0.9537 expected, standard deviation 0.0015 over 2e4 draws

# Printed tables.
PRINTED_STATISTIC = 5e-4  # absolute: statistics are printed with three decimals at most
PRINTED_P = 0.02  # p-values are printed with two or three digits

# float32.  Measured on the 200 random problems: exact solution of the kernel rounded to float32, its
# float32 certificate. Worst by stiffness Delta^2 C: 2e-7 up to 1e3, 4e-4 up to 1e5, 8e-3 up to 1e6, 2.4e-2 up to 1e7.
FLOAT32_GAP_SOFT = 1e-6  # certified gap within reach at stiffness up to 1e3 (worst 2e-7)
FLOAT32_GAP = 1e-3  # certified gap within reach at stiffness up to 1e5 (worst 4e-4)
FLOAT32_STIFFNESS = (
    1e7  # beyond it a float32 kernel loses the ridge 1/C (2^24 = 1.7e7) and may turn indefinite: STALLED
)
