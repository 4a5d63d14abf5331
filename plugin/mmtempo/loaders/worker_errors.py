"""The error of a loader, and probable causes of worker failures with their remedies."""

from __future__ import annotations

import errno
import signal

from mmtempo.system.limits import Limits
from mmtempo.utils.units import counted, size

MORE_SHARED_MEMORY = 'start the container with --shm-size={size} or --ipc=host'
MORE_FILES = 'raise it with ulimit -n {need}, or LimitNOFILE of the service'
LESS_MEMORY = 'lower num_workers, prefetch_factor or batch_size, or provide more memory'
WITHOUT_WORKERS = 'run with num_workers=0 to locate the error'
# Messages in which torch and multiprocessing hide the error number of the operating system.
TEXTS = {
    errno.EMFILE: ('Too many open files', 'items of ancdata'),
    errno.ENOSPC: ('No space left on device', 'unable to allocate shared memory'),
    errno.ENOMEM: ('Cannot allocate memory', 'WinError 1455'),  # paging file too small
}
SHARED = ('/dev/shm', '(shm)', '/torch_')  # parts of messages about /dev/shm
WINDOWS_CODES = {
    0xC0000005: 'an access violation in compiled code',
    0xC000012D: f'out of memory and paging file; {LESS_MEMORY}',
    0xC0000017: f'out of memory and paging file; {LESS_MEMORY}',
    0xC00000FD: 'a stack overflow',
}


class LoaderError(RuntimeError):
    """A failure of a loader to deliver a batch, with its probable cause.

    Training can resume from its checkpoint once the cause is removed.
    """


def why_worker_died(exitcode: int, *, oom_before: int | None, limits: Limits | None = None) -> str:
    """Return the probable cause of a worker's death, and what to do.

    Args:
        exitcode: Exit code as multiprocessing reports it, negative for a signal.
        oom_before: The OOM killer's count of kills when the worker started; None if unknown.
        limits: Limits of the machine after the death. Defaults to None: read them now.
    """
    limits = limits or Limits.of_this_machine()
    if exitcode >= 0:
        if exitcode in WINDOWS_CODES:
            return f'exit code {exitcode:#x}, {WINDOWS_CODES[exitcode]}'
        if exitcode == 0:
            return 'exit code 0: the dataset or a transform called sys.exit() or os._exit()'
        return (
            f'exit code {exitcode}: an error outside of a sample, see its traceback above; under '
            'spawn often an object that cannot be pickled, or a script without '
            "if __name__ == '__main__'"
        )
    try:
        number = signal.Signals(-exitcode).name
    except ValueError:
        return f'signal {-exitcode}'
    if number == 'SIGKILL':
        return f'{number} {_sender_of_sigkill(oom_before, limits)}'
    if number == 'SIGBUS':
        return f'{number}: {_shared_memory_is_full(limits)}; or a memory-mapped file was truncated'
    if number in ('SIGSEGV', 'SIGABRT', 'SIGILL', 'SIGFPE'):
        return (
            f'{number}: a crash in compiled code, such as a codec, cv2, or a library that does '
            f'not support fork; {WITHOUT_WORKERS} and python -X faulthandler'
        )
    return f'{number}: sent by another process, such as a scheduler at its time limit'


def why_os_error(error: BaseException, limits: Limits | None = None) -> str | None:
    """Return which system limit caused an error and what to do; None for any other error.

    Args:
        error: Exception of a worker, or of the process that receives its batches.
        limits: Present limits. Defaults to None: read those of this machine.
    """
    number = _number_of(error)
    if number is None:
        return None
    limits = limits or Limits.of_this_machine()
    if number == errno.EMFILE:
        files = limits.open_files
        now = '' if files is None else f' ({files.soft}, hard limit {files.hard})'
        advice = MORE_FILES.format(need=4096 if files is None else max(4096, 2 * files.soft))
        probably = 'probably ' * isinstance(error, EOFError)
        return f'the limit of open files{now} is {probably}reached; {advice}'
    if number == errno.ENOMEM:
        free = '' if limits.memory is None else f' ({size(limits.memory)} available now)'
        return f'out of memory{free}; {LESS_MEMORY}'
    full = _shared_memory_is_full(limits)
    if any(part in f'{error} {getattr(error, "filename", None)}' for part in SHARED):
        return full
    return f'a disk is full, or {full}'


def _shared_memory_is_full(limits: Limits) -> str:
    free = '' if limits.shared_memory is None else f' ({size(limits.shared_memory)} free now)'
    advice = MORE_SHARED_MEMORY.format(size='1g')
    return f'/dev/shm is full{free}; {advice}, or lower num_workers or prefetch_factor'


def _sender_of_sigkill(oom_before: int | None, limits: Limits) -> str:
    now = limits.oom_kills
    if now is not None and oom_before is not None and now > oom_before:
        kills = counted(now - oom_before, 'kill')
        return f'by the OOM killer ({kills} since the workers started); {LESS_MEMORY}'
    free = '' if limits.memory is None else f' ({size(limits.memory)} available now)'
    if now is None or oom_before is None:
        return f'by the OOM killer, whose count cannot be read here, or by another process{free}'
    return f'by another process; the OOM killer has not acted since the workers started{free}'


def _number_of(error: BaseException) -> int | None:
    text = str(error)
    if isinstance(error, OSError) and error.errno in TEXTS:
        return error.errno
    if isinstance(error, EOFError) and not text:
        # A worker that cannot open another file closes the connection instead of sending a tensor.
        return errno.EMFILE
    return next((key for key, texts in TEXTS.items() if any(one in text for one in texts)), None)
