"""Memory of a process and its children, measured from another process."""

from __future__ import annotations

import os
import sys

import pytest

from mmtempo.benchmarks import process_memory
from mmtempo.benchmarks.process_memory import family_of, memory_of, peak_of, talking_to

linux = pytest.mark.skipif(
    not os.path.exists('/proc/self/smaps_rollup'), reason='needs /proc/PID/smaps_rollup'
)
MB = 10**6
# The child has 20 MB, and shares 30 MB with its parent.
CHILD = f"""
import mmap, os, sys, time
print('something else')
print('ready 123', flush=True)
sys.stdin.readline()
shared = mmap.mmap(-1, 30 * {MB})
for _ in range(30):
    shared.write(b'x' * {MB})
tell, told = os.pipe(), os.pipe()
if os.fork() == 0:
    own = b'y' * 20 * {MB}
    sum(shared[::4096])
    os.write(tell[1], b'x')
    os.close(told[1])
    os.read(told[0], 1)
    os._exit(0)
os.read(tell[0], 1)
time.sleep(0.5)
print('done', flush=True)
sys.stdin.readline()
"""

# Allocates 50 MB that no other process maps.
HOLDER = f"""
import mmap
print('small', flush=True)
input()
own = mmap.mmap(-1, 50 * {MB}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for _ in range(50):
    own.write(b'x' * {MB})
print('large', flush=True)
input()
"""


@linux
def test_peak_includes_children_and_counts_shared_memory_once() -> None:
    found = peak_of([sys.executable, '-c', CHILD])
    assert found is not None
    size, extra = found
    assert size == 123
    # The interpreter of the child adds a few MB.
    assert 50 * MB <= extra < 65 * MB


@linux
def test_private_memory_is_counted() -> None:
    """In a fresh process: the heap of this one may have 50 MB of free memory."""
    with talking_to([sys.executable, '-c', HOLDER]) as (process, _):
        assert process.stdin is not None
        assert process.stdout is not None
        held = []
        for _ in range(2):
            assert process.stdout.readline()
            held.append(memory_of(process.pid))
            process.stdin.write('next\n')
            process.stdin.flush()
        assert family_of(process.pid) == [process.pid]
    assert 50 * MB <= held[1] - held[0] < 55 * MB


@linux
@pytest.mark.parametrize('code', ['1 / 0', 'print("ready 1", flush=True); input(); 1 / 0'])
def test_failed_process_is_an_error_with_its_stderr(code: str) -> None:
    with pytest.raises(RuntimeError, match='ZeroDivisionError'):
        peak_of([sys.executable, '-c', code])


def test_memory_is_not_measured_where_it_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, '_read', lambda path: '')
    assert peak_of(['never', 'started']) is None
