"""The writing process, slower, and killed before its n-th step on the disk.

Run in place of `core/writer_process.py`; `saving.with_writer` says it all through environment
variables: WRITER_FILE is the path of that one, WRITER_STEPS a file that gets the names of the
steps, WRITER_KILLED the numbers of the steps (from 1, whichever process gets there),
WRITER_TAKES_ALL whether the training is killed too, WRITER_DELAY seconds before each step.
"""

import builtins
import os
import re
import runpy
import signal
import struct
import sys
import time

END_OF_ARCHIVE = '<HHHHLLH'
KILLED = [int(number) for number in os.environ['WRITER_KILLED'].split()]


def step(name):
    time.sleep(float(os.environ['WRITER_DELAY']))
    with plain_open(os.environ['WRITER_STEPS'], 'a+') as file:
        file.write(f'{name}\n')
        file.seek(0)
        number = len(file.readlines())
    if number in KILLED:
        if os.environ['WRITER_TAKES_ALL'] == 'True':
            os.kill(int(sys.argv[1]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def shown(path):
    """The name of a file, but for what makes that of a temporary one unique."""
    return re.sub(r'\.[0-9a-f]{8}-\d+-[0-9a-f]{8}(?=\.mmtempo-tmp$)', '', os.path.basename(path))


def before(owner, name):
    original = getattr(owner, name)

    def stepping(first, *args, **kwargs):
        step(f'{name} {shown(first) if isinstance(first, str) else ""}')
        return original(first, *args, **kwargs)

    setattr(owner, name, stepping)


plain_open = builtins.open
before(os, 'replace')
before(os, 'fsync')
before(os, 'remove')


def packing(kind, *values):
    if kind == END_OF_ARCHIVE:
        step('end of archive')
    return plain_pack(kind, *values)


plain_pack = struct.pack
struct.pack = packing


def opening(path, mode='r', *args, **kwargs):
    if 'w' in mode and not path.startswith('/proc/'):
        step(f'open {shown(path)}')
    return plain_open(path, mode, *args, **kwargs)


def opening_directly(path, flags, *args):
    if flags & os.O_CREAT:
        step(f'open {shown(path)}')
    return plain_os_open(path, flags, *args)


plain_os_open = os.open
os.open = opening_directly
builtins.open = opening
runpy.run_path(os.environ['WRITER_FILE'], run_name='__main__')
