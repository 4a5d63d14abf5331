"""Memory of a process and its children, seen from outside."""

from __future__ import annotations

import os
import sys

import pytest

from mmtempo.benchmarks import process_memory
from mmtempo.benchmarks.process_memory import family_of, memory_of, peak_of

linux = pytest.mark.skipif(
    not os.path.exists('/proc/self/smaps_rollup'), reason='needs /proc/PID/smaps_rollup'
)
MB = 10**6
# A child has 20 MB of its own, and both look at the same 30 MB.
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


@linux
def test_peak_counts_children_and_shares_once() -> None:
    found = peak_of([sys.executable, '-c', CHILD])
    assert found is not None
    size, extra = found
    assert size == 123
    # The interpreter of the child adds a little.
    assert 50 * MB <= extra < 65 * MB


@linux
def test_own_memory_is_seen() -> None:
    before = memory_of(os.getpid())
    held = bytearray(b'x' * 50 * MB)
    assert memory_of(os.getpid()) - before > 0.9 * len(held)
    assert family_of(os.getpid())[0] == os.getpid()


@linux
@pytest.mark.parametrize('code', ['1 / 0', 'print("ready 1", flush=True); input(); 1 / 0'])
def test_what_fails_is_told_with_its_reason(code: str) -> None:
    with pytest.raises(RuntimeError, match='ZeroDivisionError'):
        peak_of([sys.executable, '-c', code])


def test_elsewhere_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, '_read', lambda path: '')
    assert peak_of(['never', 'started']) is None
