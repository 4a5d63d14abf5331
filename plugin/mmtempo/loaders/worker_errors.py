"""What a worker has probably died of, and what to do about it."""

from __future__ import annotations

import errno
import signal

from mmtempo.system.limits import Limits

MORE_SHARED_MEMORY = 'give the container --shm-size={size}, or --ipc=host'
MORE_FILES = 'raise it: ulimit -n {need}, or LimitNOFILE of the service'
LESS_MEMORY = 'lower num_workers, prefetch_factor or batch_size, or give it more memory'
ALONE = 'num_workers=0 shows where'
# Texts by which torch, and multiprocessing, hide what the operating system said.
TEXTS = {
    errno.EMFILE: ('Too many open files', 'items of ancdata'),
    errno.ENOSPC: ('No space left on device', 'unable to allocate shared memory'),
    errno.ENOMEM: ('Cannot allocate memory', 'WinError 1455'),  # no paging file left
}
SHARED = ('/dev/shm', '(shm)', '/torch_')  # what an error about /dev/shm has in it
WINDOWS_CODES = {
    0xC0000005: 'an access violation in compiled code',
    0xC000012D: f'no memory left, nor paging file: {LESS_MEMORY}',
    0xC0000017: f'no memory left, nor paging file: {LESS_MEMORY}',
    0xC00000FD: 'a stack overflow',
}


class LoaderError(RuntimeError):
    """No batch comes, and why; the training can go on from its checkpoint once that is mended."""


def size_of(size: float) -> str:
    """For people to read."""
    units = ['bytes', 'kB', 'MB', 'GB']
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f'{size:.3g} {units[0]}' if size < 100 else f'{size:.0f} {units[0]}'


def why_worker_died(
    exitcode: int | None, *, oom_before: int | None, limits: Limits | None = None
) -> str:
    """The likely reason, and what to do.

    Args:
        exitcode: Of the process, as multiprocessing has it: negative for a signal.
        oom_before: How often the OOM killer had struck when the worker was started.
        limits: As they are after its death. Defaults to None: this machine, now.
    """
    limits = limits or Limits.of_this_machine()
    if exitcode is None:
        return f'it still runs, but does not answer; {ALONE}'
    if exitcode >= 0:
        if exitcode in WINDOWS_CODES:
            return f'exit code {exitcode:#x}, {WINDOWS_CODES[exitcode]}'
        if exitcode == 0:
            return 'exit code 0: a data set or transform has called sys.exit() or os._exit()'
        return (
            f'exit code {exitcode}: an error outside of a sample, its traceback is above; under '
            "spawn often a part that cannot be pickled, or no if __name__ == '__main__' in a script"
        )
    try:
        number = signal.Signals(-exitcode).name
    except ValueError:
        return f'signal {-exitcode}'
    if number == 'SIGKILL':
        return f'{number}: {_why_killed(oom_before, limits)}'
    if number == 'SIGBUS':
        free = limits.shared_memory
        now = '' if free is None else f' ({size_of(free)} free now)'
        advice = MORE_SHARED_MEMORY.format(size='1g')
        return (
            f'{number}: /dev/shm is full{now}: {advice}, or lower num_workers or prefetch_factor; '
            'or else a file that was mapped into memory has been cut short'
        )
    if number in ('SIGSEGV', 'SIGABRT', 'SIGILL', 'SIGFPE'):
        return (
            f'{number}: a crash in compiled code, as a codec, cv2, or a library that does not '
            f'stand a fork; {ALONE}, python -X faulthandler too'
        )
    return f'{number}: somebody has ended it, as a scheduler does at the end of its time'


def why_os_error(error: BaseException, limits: Limits | None = None) -> str | None:
    """What limit was met, and what to do; None where the error is about something else.

    Args:
        error: Of a worker, or of who takes from it.
        limits: As they are now. Defaults to None: this machine.
    """
    number = _number_of(error)
    if number is None:
        return None
    limits = limits or Limits.of_this_machine()
    if number == errno.EMFILE:
        files = limits.open_files
        now = '' if files is None else f' of {files.soft} (hard limit {files.hard})'
        advice = MORE_FILES.format(need=4096 if files is None else max(4096, 2 * files.soft))
        probably = 'probably ' * isinstance(error, EOFError)
        return f'the limit of open files{now} is {probably}reached; {advice}'
    if number == errno.ENOMEM:
        free = '' if limits.memory is None else f' ({size_of(limits.memory)} available now)'
        return f'there is no memory left{free}: {LESS_MEMORY}'
    free = '' if limits.shared_memory is None else f' ({size_of(limits.shared_memory)} free now)'
    advice = MORE_SHARED_MEMORY.format(size='1g')
    full = f'/dev/shm is full{free}: {advice}, or lower num_workers or prefetch_factor'
    if any(part in f'{error} {getattr(error, "filename", None)}' for part in SHARED):
        return full
    return f'a disk is full, or else {full}'


def _why_killed(oom_before: int | None, limits: Limits) -> str:
    now = limits.oom_kills
    if now is not None and oom_before is not None and now > oom_before:
        return (
            f'by the OOM killer, which has struck {now - oom_before} x since the workers were '
            f'started: {LESS_MEMORY}'
        )
    free = '' if limits.memory is None else f' ({size_of(limits.memory)} available now)'
    if now is None or oom_before is None:
        return f'by somebody, or by the OOM killer, whose count cannot be read here{free}'
    return f'by somebody; the OOM killer has not struck in this container or machine{free}'


def _number_of(error: BaseException) -> int | None:
    text = str(error)
    if isinstance(error, OSError) and error.errno in TEXTS:
        return error.errno
    if isinstance(error, EOFError) and not text:
        # A worker that cannot open one more file hangs up instead of handing a tensor over.
        return errno.EMFILE
    return next((key for key, texts in TEXTS.items() if any(one in text for one in texts)), None)
