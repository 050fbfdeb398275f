"""Every file of ours is written whole or not at all: the older one survives a full disk, a refusal and a kill."""

import os
import re
import resource
import stat
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import samples

import jaxsvm
from jaxsvm import coresets, datasets, designs
from jaxsvm.cli.report import complain, show
from jaxsvm.coresets.stream import Stream
from jaxsvm.coresets.summary import Coreset
from jaxsvm.errors import DataError, InputError
from jaxsvm.models import interchange
from jaxsvm.runtime.files import write_whole

HERE = Path(__file__).resolve().parent
X, Y = samples.data()


@pytest.fixture(scope="module")
def model():
    problem = samples.svm()
    return jaxsvm.compact(jaxsvm.fit(problem), problem)


def _coreset():
    return Coreset(np.asarray(X), np.asarray(Y, float), np.ones(len(Y)), {"C": 1.0, "lower": 0.0})


def _stream(path):
    stream = Stream(1.0, 20, 40)
    stream.update(stream.init(0), X[:30], Y[:30]).save(path)


WRITERS = {
    "model.npz": lambda model, path: model.save(path),
    "model.txt": interchange.to_libsvm,
    "model.onnx": interchange.to_onnx,
    "small.npz": lambda model, path: coresets.save_coreset(path, _coreset()),
    "stream.npz": lambda model, path: _stream(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_older_file_survives_a_full_disk(name, tmp_path, model):
    """And nothing else is left over."""
    (tmp_path / name).write_text("older")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        with pytest.raises(OSError):
            WRITERS[name](model, tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "older"}
    os.chmod(tmp_path / name, 0o640)
    WRITERS[name](model, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o640  # that of the older one
    assert (tmp_path / name).stat().st_size > 200


def test_an_unfinished_file_replaces_none(tmp_path):
    """Whatever ends the writing, the older one stays; links stay links; errors name the file asked for."""
    (tmp_path / "a").write_text("older")
    (tmp_path / "link").symlink_to(tmp_path / "a")

    def stopped(file):
        file.write(b"newer")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(stopped, tmp_path / "link")
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["older", "older"]
    write_whole(lambda file: file.write(b"newer"), tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a").read_text() == "newer"
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "none" / "a"))):
        write_whole(lambda file: file.write(b""), tmp_path / "none" / "a")
    with pytest.raises(IsADirectoryError):
        write_whole(lambda file: file.write(b""), tmp_path)


def test_a_pipe_is_written_to(tmp_path, model):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=model.save, args=(pipe,))
    writer.start()
    content = pipe.read_bytes()
    writer.join()
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    (tmp_path / "model.npz").write_bytes(content)
    np.testing.assert_array_equal(jaxsvm.load_model(tmp_path / "model.npz").coef, model.coef)


def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_first_pass(tmp_path):
    passes = []
    place = tmp_path / "none" / "state.npz"
    for wrong in (place, tmp_path):
        with pytest.raises(InputError, match="checkpoint is"):
            designs.fit(designs.from_arrays(X, Y), 1.0, checkpoint=wrong, callback=lambda *_: passes.append(1))
        with pytest.raises(InputError, match="checkpoint is"):
            coresets.of_rows(designs.from_arrays(X, Y), 1.0, 10, checkpoint=wrong)
    assert not passes


def test_a_label_that_comes_after_the_first_pass_is_refused_by_name(tmp_path):
    """In a file of the same size and time; coresets took it for the negative class."""
    file = tmp_path / "rows.csv"
    rows = [f"{i},{i % 2}" for i in range(60)]
    file.write_text("a,b\n" + "\n".join(rows))
    times = os.stat(file)
    found = designs.from_files(file, label="b")
    file.write_text("a,b\n" + "\n".join([*rows[:-1], rows[-1][:-1] + "7"]))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    for use in (lambda: designs.fit(found, 1.0, max_passes=2), lambda: coresets.of_rows(found, 1.0, 20)):
        with pytest.raises(DataError, match="the label 7"):
            use()


def test_names_do_not_move_the_cursor(capsys):
    """Labels and columns with terminal escape sequences, in reports and in errors."""
    show(False, {"classes": ["a\x1b[2J", "[red]b"], "path": [{"C": 1.0, "x\x1b[1A": "y\x9b1A"}], "note": "c\rd"})
    complain("label is \x1b]0;t\x07")
    out, error = capsys.readouterr()
    assert not [c for c in out + error if not c.isprintable() and c != "\n"]
    assert r"a\x1b[2J" in out and "[red]b" in out and r"\x1b]0;t\x07" in error


def test_partitions_that_are_none_are_refused_by_name():
    dask = pytest.importorskip("dask")
    from dask import delayed

    with dask.config.set(scheduler="sync"), pytest.raises(InputError, match="computes to NoneType"):
        designs.from_dask([delayed((X, Y)), delayed(print)()])


KILLED = """
import sys
import numpy as np
import pandas as pd
import test_files
from jaxsvm import load_model
model = load_model(sys.argv[2])
print("ready", flush=True)
while True:
    test_files.WRITERS[sys.argv[1]](model, sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WRITERS if name != "stream.npz"])
def test_kills_at_random_times_leave_a_whole_file(name, tmp_path, model):
    """Of a process that writes again and again; two such processes write the same file."""
    model.save(tmp_path / "source.npz")
    path = tmp_path / name
    WRITERS[name](jaxsvm.load_model(tmp_path / "source.npz"), path)
    whole = path.read_bytes() if name.endswith((".txt", ".onnx")) else None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]), "JAX_ENABLE_X64": "1"}
    for delay in np.random.default_rng(0).uniform(0, 0.05, 3):
        command = [sys.executable, "-c", KILLED, name, str(tmp_path / "source.npz"), str(path)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
        for process in processes:
            assert process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
        if name == "model.npz":
            np.testing.assert_array_equal(jaxsvm.load_model(path).coef, model.coef)
        elif name == "small.npz":
            assert len(coresets.load_coreset(path)) == 60
        else:
            assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([2**53 + 1, 0], [2.0**53 + 2, 0.0]), ([2**53 + 1, 0], np.array([2**53 + 2, 0], np.uint64)),
        ([Decimal("1"), Decimal("0")], [1, 0]),
    ],
)  # fmt: skip
def test_labels_of_other_types_in_other_parts_keep_their_digits_or_are_refused(tmp_path, first, second):
    """Joined as floats, two labels of 64 bits became one."""
    for name, labels in (("a", first), ("b", second)):
        pd.DataFrame({"x": [1.0, 2.0], "y": labels}).to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="labels have other types"):
        datasets.load(tmp_path)


def test_labels_of_more_than_64_bits_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(2), y=np.array([0, 1], np.longdouble))
    with pytest.raises(DataError, match="64 bits"):
        datasets.load(tmp_path / "a.npz")
