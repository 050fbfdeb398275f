"""Sizes of the programs that users trace: lines of StableHLO, loops, CPU seconds of tracing, lowering and compiling.

    python benchmarks/program_size.py [WORD ...] [--no-compile]

As users have them: 32 bits, no flags of XLA, no compilation cache. WORDs choose entries by name. The sketch is the same
hinge problem with a free bias by pair steps, certified in float64, in 60 lines: what such a program takes at least.
"""

import argparse
import pathlib
import sys
from time import process_time as seconds

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import jax
import traced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--no-compile", action="store_true", help="sizes alone, which need no compilation")
    arguments = parser.parse_args()
    print(f"jax {jax.__version__}; CPU seconds")
    print(f"{'':38}{'lines':>8}{'budget':>8}{'loops':>7}{'trace':>8}{'lower':>8}{'compile':>9}")
    for name, entry in traced.ENTRIES.items():
        if arguments.words and not any(word in name for word in arguments.words):
            continue
        jax.clear_caches()
        begun = seconds()
        program = jax.jit(entry.function).trace(*entry.arguments)
        seen = seconds()
        lowered = program.lower()
        ready = seconds()
        text = lowered.as_text()
        row = f"{name:38}{traced.lines_of(lowered):8}{entry.budget:8}{text.count('stablehlo.while'):7}"
        row += f"{seen - begun:8.2f}{ready - seen:8.2f}"
        if not arguments.no_compile:
            written = seconds()
            lowered.compile()
            row += f"{seconds() - written:9.2f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
