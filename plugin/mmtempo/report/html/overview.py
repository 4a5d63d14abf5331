"""The top of the page: run, verdict, key figures."""

from __future__ import annotations

import time
from typing import Any

from mmtempo.report.format import duration, number
from mmtempo.report.run_log import RunLog
from mmtempo.report.sections import figures

from .markup import Markup, element, put

_STATUS = {
    'completed': 'completed',
    'interrupted': 'interrupted',
    'crashed': 'crashed',
    'running': 'still running, or killed',
}


def header(log: RunLog) -> Markup:
    """Return name, status, start, length and progress of the run."""
    summary = log.summary
    status = str(summary.get('status') or '')
    pill = element(
        'span', _STATUS.get(status, status), class_=f'pill {status if status in _STATUS else ""}'
    )
    facts = [
        _moment(summary.get('started')),
        _length(log),
        _progress(summary),
        log.machine.get('accelerator') or log.machine.get('cpu'),
    ]
    return element(
        'header',
        element('p', 'mmtempo report', class_='brand'),
        element('h1', log.name, ' ', pill if status else None),
        element('p', ' · '.join(str(fact) for fact in facts if fact), class_='facts'),
        element('p', str(log.source), class_='path'),
        element('p', summary['error'], class_='error') if summary.get('error') else None,
    )


def verdict(log: RunLog) -> Markup:
    """Return the verdict: headline, reasons, suggested overrides."""
    found = log.summary.get('verdict') or {}
    changes = [change for change in found.get('change') or [] if change.get('override')]
    parts = [element('h2', found.get('headline') or 'No verdict was written', class_='headline')]
    if found.get('why'):
        parts.append(element('ul', *(element('li', reason) for reason in found['why'])))
    if changes:
        parts.append(element('h3', 'Suggested changes'))
        parts += [_change(f'--cfg-options {c["override"]}', c.get('why')) for c in changes]
    if len(changes) > 1:
        together = ' '.join(str(change['override']) for change in changes)
        parts.append(_change(f'--cfg-options {together}', 'All changes together'))
    return element('section', *parts, class_='card verdict')


def _change(command: str, why: Any) -> Markup:
    copy = element('button', 'Copy', type='button', data_copy=command)
    return element(
        'div',
        element('div', element('code', command), copy, class_='command'),
        element('p', why, class_='note') if why else None,
        class_='change',
    )


def tiles(log: RunLog) -> Markup | None:
    """Return the key figures."""
    found = figures(log.summary, 'as logged' if log.kind == 'stock' else 'end to end')
    shown = [
        element(
            'div',
            element('dt', figure.name),
            element('dd', figure.value),
            element('dd', figure.note, class_='note') if figure.note else None,
        )
        for figure in found
    ]
    return element('dl', *shown, class_='tiles') if shown else None


def notes(log: RunLog) -> Markup | None:
    """Return the limits of the log files."""
    if not log.notes:
        return None
    title = 'Limits of stock logs' if log.kind == 'stock' else 'About these files'
    return element(
        'section',
        element('h2', title),
        element('ul', *(element('li', note) for note in log.notes)),
        class_='card about',
    )


def _length(log: RunLog) -> str | None:
    seconds = number(log.summary.get('seconds'))
    about = 'about ' if log.kind == 'stock' else ''  # without evaluations
    return None if seconds is None else f'{about}{duration(seconds)} of training'


def _progress(summary: dict[str, Any]) -> str | None:
    last, whole = number(summary.get('last_iter')), number(summary.get('max_iters'))
    if last is None:
        return None
    first = number(summary.get('first_iter'))
    text = f'iteration {last:.0f}' + (f' of {whole:.0f}' if whole else '')
    return text + (f', resumed at {first:.0f}' if first else '')


def _moment(unix: Any) -> str | None:
    found = number(unix)
    return None if not found else time.strftime('%Y-%m-%d %H:%M', time.localtime(found))


def document(title: str, style: str, *body: Any) -> str:
    """Return a whole page, whose policy makes the browser refuse any access to the network."""
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        'img-src data: blob:'
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'{put(element("title", title))}<style>{style}</style></head>'
        f'<body><main>{put(*body)}</main></body></html>\n'
    )
