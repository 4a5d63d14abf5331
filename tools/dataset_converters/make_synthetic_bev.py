"""Write a synthetic BEV data set in the layout that `NuScenesBEVDataset` reads.

The scenes are ground areas and boxes, seen through pinhole cameras of several kinds; image and
label agree geometrically. The same arguments write the same files. With --multicam each sample
has six images from around a vehicle, and one label for all of them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from rich.progress import track

from mmtempo.workloads.bev.synthetic import write_dataset


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument('root', help='folder to create, for example data/synthetic_bev')
    parser.add_argument('--num', type=int, default=200, help='training samples')
    parser.add_argument('--num-val', type=int, default=40, help='validation samples')
    parser.add_argument(
        '--size',
        type=int,
        nargs=2,
        default=(1600, 900),
        metavar=('WIDTH', 'HEIGHT'),
        help='pixels of each image; 16:9 keeps them square',
    )
    parser.add_argument(
        '--multicam',
        action='store_true',
        help='six cameras per sample instead of one, for example in data/synthetic_multicam',
    )
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--suffix', choices=['jpg', 'png'], default='jpg')
    parser.add_argument('--workers', type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    for name, least in (('num', 1), ('num_val', 1), ('workers', 1), ('seed', 0)):
        if getattr(args, name) < least:
            parser.error(
                f'--{name.replace("_", "-")} must be at least {least}, found {getattr(args, name)}'
            )
    if min(args.size) < 32:
        parser.error(f'--size must be at least 32 x 32, found {args.size}')
    return args


def main() -> int:
    args = parse_args()
    num = dict(train=args.num, val=args.num_val)
    started = time.perf_counter()
    try:
        samples = write_dataset(
            args.root, num, tuple(args.size), args.seed, args.suffix, args.workers, args.multicam
        )
        for _ in track(samples, 'synthetic BEV data', total=sum(num.values())):
            pass
    except OSError as error:
        print(f'make_synthetic_bev.py: error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('interrupted; nothing was written', file=sys.stderr)
        return 130
    images = 'samples of six images' if args.multicam else 'images'
    print(
        f'{args.num} + {args.num_val} {images} of {args.size[0]}x{args.size[1]} in '
        f'{os.path.abspath(args.root)} ({time.perf_counter() - started:.1f} s)'
    )
    return 0


if __name__ == '__main__':
    sys.exit(main())
