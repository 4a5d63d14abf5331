"""Signals set a flag; a second Ctrl-C has its earlier effect."""

from __future__ import annotations

import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mmtempo.system import interrupts as module
from mmtempo.system.interrupts import SIGNALS, Interrupts


class Noting:
    """An `Interrupts` that notes a second Ctrl-C."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.is_wanted = True
        self.interrupts = Interrupts(lambda: self.is_wanted, self.note)

    def note(self) -> None:
        self.done.append('second')


@pytest.fixture
def noting() -> Iterator[Noting]:
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGCHLD)}
    # Background jobs of a shell ignore SIGINT, and another test may have left a handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    noting = Noting()
    yield noting
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize('number', SIGNALS)
def test_the_first_signal_only_sets_a_flag(number: signal.Signals, noting: Noting) -> None:
    noting.interrupts.install()
    assert noting.interrupts.requested is None
    signal.raise_signal(number)
    assert noting.interrupts.requested is number
    assert noting.done == []


@pytest.mark.parametrize(('number', 'again'), zip(SIGNALS, ('Ctrl-C again', 'Ctrl-C'), strict=True))
def test_first_signal_is_announced_at_once(
    number: signal.Signals, again: str, noting: Noting, capfd: pytest.CaptureFixture
) -> None:
    interrupts = Interrupts(lambda: True, noting.note, 'ends soon')
    interrupts.install()
    signal.raise_signal(number)
    signal.raise_signal(signal.SIGTERM)
    interrupts.restore()
    assert capfd.readouterr().err == f'\n{number.name}: ends soon; {again} ends it at once\n'


@pytest.mark.parametrize('first', SIGNALS)
def test_a_second_ctrl_c_raises(first: signal.Signals, noting: Noting) -> None:
    before = handlers()
    noting.interrupts.install()
    signal.raise_signal(first)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert noting.done == ['second']
    assert handlers() == before  # a third one has the default effect


def test_a_ctrl_c_forwarded_by_the_launcher_counts_once(noting: Noting) -> None:
    """The terminal signals all processes, and torchrun forwards the signal."""
    now = [5.0]
    noting.interrupts = Interrupts(lambda: True, noting.note, same=1.0, clock=lambda: now[0])
    noting.interrupts.install()
    for now[0] in (5.0, 5.0, 5.9):
        signal.raise_signal(signal.SIGINT)
    assert noting.done == []
    now[0] = 6.0
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert noting.done == ['second']


@pytest.mark.parametrize(('name', 'same'), [('TORCHELASTIC_RUN_ID', 1.0), ('OTHER', 0.0)])
def test_torchrun_is_recognized(name: str, same: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('TORCHELASTIC_RUN_ID', raising=False)
    monkeypatch.setenv(name, 'x')
    assert runpy.run_path(module.__file__)['FORWARDED'] == same


@pytest.mark.parametrize('first', SIGNALS)
def test_a_second_sigterm_does_not_raise(first: signal.Signals, noting: Noting) -> None:
    noting.interrupts.install()
    signal.raise_signal(first)
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
    assert noting.done == []
    assert noting.interrupts.requested is first


@pytest.mark.parametrize('number', SIGNALS)
def test_signal_that_is_not_wanted_has_its_earlier_effect(
    number: signal.Signals, noting: Noting
) -> None:
    """As after a failed training, which has not restored the handlers."""
    seen: list[int] = []
    signal.signal(number, lambda number, frame: seen.append(number))
    before = handlers()
    noting.interrupts.install()
    noting.is_wanted = False
    signal.raise_signal(number)
    assert seen == [number]
    assert handlers() == before
    assert noting.interrupts.requested is None


def test_handler_of_a_user_that_calls_the_earlier_one(noting: Noting) -> None:
    noting.interrupts.install()
    ours = signal.getsignal(signal.SIGINT)
    assert callable(ours)
    signal.signal(signal.SIGINT, lambda *args: ours(*args))
    signal.raise_signal(signal.SIGINT)
    assert noting.interrupts.requested is signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ignored_signals_stay_ignored(noting: Noting) -> None:
    """As in a background job of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    noting.interrupts.install()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.raise_signal(signal.SIGTERM)
    assert noting.interrupts.requested is signal.SIGTERM
    noting.interrupts.restore()
    assert handlers() == [signal.SIG_IGN, signal.SIG_DFL]


def test_restore_puts_back_the_handlers(noting: Noting) -> None:
    def own(*args: Any) -> None:
        pass

    signal.signal(signal.SIGTERM, own)
    before = handlers()
    noting.interrupts.install()
    assert own not in handlers()
    noting.interrupts.restore()
    assert handlers() == before
    noting.interrupts.restore()
    assert handlers() == before


@pytest.mark.parametrize('order', [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_several_can_be_restored_in_any_order(order: tuple, noting: Noting) -> None:
    """The last one must not restore the handler of one that has ended."""
    before = handlers()
    several = [Noting().interrupts for _ in range(3)]
    for one in several:
        one.install()
    for index in order:
        several[index].restore()
    assert handlers() == before


def test_restore_keeps_handlers_installed_later(noting: Noting) -> None:
    def own(*args: Any) -> None:
        pass

    before = handlers()
    noting.interrupts.install()
    signal.signal(signal.SIGTERM, own)
    noting.interrupts.restore()
    assert handlers() == [before[0], own]


def test_only_the_main_thread_installs(noting: Noting) -> None:
    before = handlers()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(noting.interrupts.install).result()
    assert handlers() == before
    noting.interrupts.restore()


FORKING = """
import os, runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
Interrupts = runpy.run_path({path!r})['Interrupts']
interrupts = Interrupts(lambda: True, lambda: None)
interrupts.install()
(there, told), (heard, go) = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    os.write(told, b'a')
    os.read(heard, 1)  # continues after a SIGINT
    os.write(told, b'b' if interrupts.requested is None else b'c')
    while True:
        signal.pause()
os.read(there, 1)
os.kill(pid, signal.SIGINT)
os.write(go, b'a')
print(os.read(there, 1) == b'b', flush=True)
os.kill(pid, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_forked_processes_ignore_ctrl_c_and_end_on_sigterm() -> None:
    """Workers receive Ctrl-C as well, but the training still needs them."""
    script = FORKING.format(path=module.__file__)
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ('True\n-15\n', '')
