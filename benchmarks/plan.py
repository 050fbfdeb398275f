"""What a pass of designs.fit costs: a model of operations, bytes and messages, and passes that check it.

    python benchmarks/plan.py                       # the table of docs/planning.md
    python benchmarks/plan.py --check [--rows 200000]   # measured passes on 1, 2, 4, 8 devices and 1, 2 processes

A pass evaluates scores, a plane and a Hessian for each lane (`jaxsvm/designs/losses.py`). Forced devices of a CPU share
its cores, so the model is checked by what it says of shares: seconds of a pass on k devices against one.
"""

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROWS, DEVICES = (10**6, 10**8, 10**10), (1, 8, 64, 1024)
REACHES = 17  # distances for which rows are counted


class Pass(NamedTuple):
    """Costs of a pass for each device."""

    flops: float
    bytes_read: float
    bytes_sent: float
    messages: int


def cost(n, d, devices, lanes=1, ramp=0.1, row_bytes=4):
    """Return the costs of a pass of n rows of d features for each device.

    Args:
        n: Number of rows.
        d: Number of features.
        devices: Number of devices; each sends its sums in `2 log2(devices)` messages of an all-reduce.
        lanes: Values of C, classes and folds, multiplied.
        ramp: Share of the rows on the ramp, whose squares the Hessian sums.
        row_bytes: Bytes of a stored number.
    """
    own, p = -(-n // devices), d + 1
    flops = own * (lanes * (4 * p + 2 * ramp * p * p + 2 * REACHES))
    sent = 8 * lanes * (p * p + p + REACHES + 4) * (2 * (devices - 1) / devices)
    return Pass(flops, own * (d * row_bytes + 16), sent, 2 * int(np.ceil(np.log2(devices))))


def table(d=50, flops=1e10, reads=1e10, sends=1e9, latency=5e-5):
    """Return the lines of the table of the planning page, in Markdown.

    Args:
        d: Number of features.
        flops: Operations a second of a device, in float64.
        reads: Bytes a second that it reads.
        sends: Bytes a second that it sends.
        latency: Seconds of a message.
    """
    lines = [
        "| rows | devices | GiB of rows a device | operations | KiB sent | messages | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for n in ROWS:
        for devices in DEVICES:
            one = cost(n, d, devices)
            seconds = max(one.flops / flops, one.bytes_read / reads) + one.bytes_sent / sends + latency * one.messages
            read, sent = f"{one.bytes_read / 2**30:.3g}", f"{one.bytes_sent / 2**10:.0f}"
            line = f"| {n:.0e} | {devices:,} | {read} | {one.flops:.2g} | {sent} | {one.messages} | {seconds:.2g} |"
            lines.append(line.replace("e+0", "e").replace("e+", "e"))
    return lines


def backends():
    """Return the lines of the table of what is chosen for each backend, in Markdown, from the measured numbers."""
    from jaxsvm.gram.measured import MEASURED as gram
    from jaxsvm.loop.measured import MEASURED as loop
    from jaxsvm.numerics.measured import MEASURED as sizes
    from jaxsvm.solvers.measured import MEASURED as solvers

    rows = f"{sizes.largest_direct_system:,} rows of a design, {gram.rows_per_tile} of a kernel matrix"
    block = f"{loop.samples_of_one_working_set} to {loop.samples_of_a_larger_set:,} samples, "
    block += f"{solvers.steps_per_turn} steps a turn"
    cpu, all_lanes = f"{loop.lanes_together} at a time", "all at once"
    names = (
        ("cpu", cpu, "steps in the data's, certificates in float64", "measured"),
        ("cuda", all_lanes, "as on a CPU; products of all digits, never TF32", "not measured"),
        ("tpu", all_lanes, "float32 throughout: no float64", "not measured"),
    )
    lines = ["| backend | lanes of `vmap` | chunk | block | precision | |", "|---|---|---|---|---|---|"]
    return lines + [f"| {name} | {lanes} | {rows} | {block} | {digits} | {how} |" for name, lanes, digits, how in names]


WORK = """
import os, sys, time
devices, processes, process, port, n, d = map(int, sys.argv[1:])
import jax
jax.config.update("jax_num_cpu_devices", devices // processes)
if processes > 1:
    jax.distributed.initialize(f"localhost:{port}", processes, process)
import numpy as np
from jaxsvm import designs
from jaxsvm.designs.losses import Evaluate, Lanes
rng = np.random.default_rng(process)
x = rng.normal(size=(n // processes, d)).astype(np.float32)
y = np.where(x[:, 0] + rng.normal(size=len(x)) > 0, 1, -1)
rows = designs.from_arrays(x, y, mesh=jax.make_mesh((devices,), ("rows",)))
w = np.zeros((1, d + 1)); w[0, 0] = 1.0
one = np.ones(1)
lanes = Lanes(w, one, np.ones(1, np.int32), -np.ones(1, np.int32), 0.5 * one, 0 * one, 0 * one)
seconds, cpu = [], []
for turn in range(8):
    start, before = time.perf_counter(), time.process_time()
    sums = rows.total(Evaluate("hinge"), lanes)
    seconds.append(time.perf_counter() - start); cpu.append(time.process_time() - before)
share = float(sums.near[0, 2]) / n
if process == 0:
    print(min(seconds[1:]), min(cpu[1:]), share)
"""


def measured(devices, processes, n, d):
    """Return seconds and one process's processor seconds, of the fastest of seven passes, and the share on the ramp."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    setting = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    numbers = [map(str, (devices, processes, k, port, n, d)) for k in range(processes)]
    running = [
        subprocess.Popen([sys.executable, "-c", WORK, *own], env=setting, stdout=subprocess.PIPE, text=True)
        for own in numbers
    ]
    output = [each.communicate()[0] for each in running]
    return tuple(map(float, output[0].split()[-3:]))


def check(n, d):
    """Print measured and predicted processor seconds of a pass; the rate of operations is that of one device."""
    rate = None
    for devices, processes in ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2)):
        seconds, cpu, ramp = measured(devices, processes, n, d)
        flops = cost(n, d, devices, ramp=ramp).flops * devices
        rate = rate or flops / cpu
        predicted, total = flops / rate, cpu * processes
        print(
            f"| {devices} | {processes} | {1e3 * seconds:.0f} | {1e3 * total:.0f} | {1e3 * predicted:.0f} "
            f"| {total / predicted:.2f} |", flush=True,
        )  # fmt: skip
    print(f"rate {rate:.3g} operations a second, {100 * ramp:.0f} % of the rows on the ramp")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=50)
    asked = parser.parse_args()
    if asked.check:
        check(asked.rows, asked.features)
    else:
        print("\n".join([*table(asked.features), "", *backends()]))
