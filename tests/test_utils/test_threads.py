"""Threads of the package leave the training's OpenMP team alone; counted in fresh processes."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mmtempo
from mmtempo.benchmarks.side_effects_run import native_threads
from mmtempo.loaders.background_iterator import BackgroundIterator
from mmtempo.utils.threads import PREFIX, HelperThread
from tests.testing.processes import SPAWN, in_child

LARGE = 10**6  # elements: torch splits operations on more than 32768 among its threads

# Operations that helper threads run; each starts a team in a thread with two intra-op threads.
OPERATIONS: dict[str, Callable[[], Any]] = {
    'copy': lambda: torch._foreach_copy_([torch.empty(LARGE)], [torch.ones(LARGE)]),
    'check': lambda: torch.ones(LARGE).isfinite().all(),
    'stack': lambda: torch.stack([torch.ones(LARGE)] * 2),
    'matmul': lambda: torch.mm(torch.ones(512, 512), torch.ones(512, 512)),
    'convolve': lambda: torch.conv2d(torch.ones(4, 16, 64, 64), torch.ones(16, 16, 3, 3)),
}


def seen_by_torch() -> dict[str, int]:
    torch.set_num_threads(2)
    seen = {}

    def look(name: str) -> None:
        seen[name] = torch.get_num_threads()

    helper = HelperThread('test', look, 'helper')
    helper.start()
    helper.join()
    later = threading.Thread(target=look, args=('a later thread',))
    later.start()
    later.join()
    look('main')
    assert helper.torch_threads == seen['helper']
    assert helper.daemon
    assert helper.name == f'{PREFIX}test'
    return seen


def test_only_the_helper_thread_has_one_torch_thread() -> None:
    found = in_child(seen_by_torch, context=SPAWN)
    assert found == {'helper': 1, 'a later thread': 2, 'main': 2}


def native_threads_after(name: str) -> tuple[int | None, int | None]:
    torch.set_num_threads(2)
    for operation in OPERATIONS.values():
        operation()  # the training's own team
    before = native_threads()
    source = BackgroundIterator(lambda: iter(lambda: [OPERATIONS[name]()], None))
    source.take()
    after = native_threads()  # the thread is alive, with any team that it has started
    source.close()
    return before, after


@pytest.mark.skipif(sys.platform != 'linux', reason='needs /proc/self/task')
@pytest.mark.parametrize('name', OPERATIONS)
def test_operations_in_a_helper_thread_start_no_team(name: str) -> None:
    before, after = in_child(native_threads_after, name, context=SPAWN)
    assert after == before


def test_no_module_starts_a_plain_thread() -> None:
    root = Path(mmtempo.__file__).parent
    modules = {
        path.relative_to(root).as_posix(): path.read_text('utf-8')
        for path in root.rglob('*.py')
        if 'benchmarks' not in path.parts
    }
    assert len(modules) > 100
    assert [name for name, text in modules.items() if re.search(r'\bThread\(', text)] == []
    for name, text in modules.items():
        pools = re.findall(r'ThreadPoolExecutor\((.*)\)', text)
        assert all('use_one_thread' in arguments for arguments in pools), name
