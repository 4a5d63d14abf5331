"""Writer process that is slower, and is killed before chosen operations on the disk.

It is run in place of `mmtempo/checkpoint/io/writer_process.py`. `saving.with_writer` sets its
environment variables: WRITER_FILE is the path of that program, WRITER_STEPS a file to which the
name of each operation is appended, WRITER_KILLED the numbers of the operations before which the
process is killed (from 1, counted over all processes), WRITER_TAKES_ALL whether the training is
killed too, and WRITER_DELAY a time in seconds before each operation.
"""

import builtins
import os
import re
import runpy
import signal
import struct
import sys
import time
import zipfile

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
    """Return the name of a file, without the unique part of a temporary file."""
    return re.sub(r'\.[0-9a-f]{8}-\d+-[0-9a-f]{8}(?=\.mmtempo-tmp$)', '', os.path.basename(path))


def before(owner, name):
    """Take a step before each call of a function."""
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
    if kind == zipfile.structEndArchive:
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
