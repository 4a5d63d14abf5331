// Unpack plotly.js, which is part of the page, and draw the charts. Redraw them when the color
// scheme or the width changes.
'use strict';

(() => {
  const boxes = [...document.querySelectorAll('.chart')];
  const charts = JSON.parse(document.getElementById('charts').textContent);
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  const narrow = window.matchMedia('(max-width: 640px)');

  const giveUp = (reason) => {
    for (const box of boxes) {
      box.classList.add('failed');
      box.style.height = 'auto';
      box.textContent = reason;
    }
  };

  const unpack = async (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
    return new Response(stream).text();
  };

  const variable = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Colors are names of CSS variables.
  const colored = (value, key = '') => {
    if (Array.isArray(value)) return value.map((item) => colored(item, key));
    if (value && typeof value === 'object') {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, colored(v, k)]));
    }
    const isName = typeof value === 'string' && value.startsWith('--') && /color$/.test(key);
    return isName ? variable(value) : value;
  };

  const axis = (own) => ({
    gridcolor: '--grid', linecolor: '--grid', zerolinecolor: '--grid', automargin: true,
    ticks: '', ...own,
    title: { standoff: 8, font: { size: 12, color: '--muted' }, ...(own || {}).title },
  });

  const layout = (own) => colored({
    autosize: true,
    paper_bgcolor: '--clear', plot_bgcolor: '--clear',
    font: { family: variable('--font'), size: 12, color: '--ink' },
    margin: { t: 8, r: 36, b: 44, l: 56 },
    hovermode: 'closest',
    hoverlabel: { bgcolor: '--surface', bordercolor: '--grid', align: 'left',
      font: { size: 12, color: '--ink' } },
    legend: { orientation: 'h', y: 1.02, yanchor: 'bottom', x: 0, font: { size: 12 } },
    modebar: { orientation: 'v', bgcolor: '--clear', color: '--muted', activecolor: '--accent' },
    uirevision: 'kept',
    ...own,
    ...Object.fromEntries(
      ['xaxis', 'yaxis', ...Object.keys(own).filter((key) => /^[xy]axis\d/.test(key))]
        .map((key) => [key, axis(own[key])])),
  });

  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [['zoom2d', 'pan2d', 'zoomIn2d', 'zoomOut2d', 'resetScale2d', 'toImage']],
  };

  const draw = async () => {
    for (const chart of charts) {
      const box = document.getElementById(`chart-${chart.name}`);
      if (!box) continue;
      box.dataset.surface = variable('--surface');
      // On a narrow page, a legend of a dozen phases would be larger than the chart.
      const shown = chart.has_key && narrow.matches ? { showlegend: false } : {};
      await Plotly.react(box, colored(chart.data), layout({ ...chart.layout, ...shown }),
        { ...config, ...chart.config });
    }
  };

  const start = async () => {
    if (typeof DecompressionStream === 'undefined') {
      giveUp('This browser cannot unpack the charts (no DecompressionStream: Chrome 80, ' +
        'Firefox 113, Safari 16.4 or later have it). All figures are in the tables.');
      return;
    }
    try {
      const script = document.createElement('script');
      script.textContent = await unpack(document.getElementById('plotly').textContent);
      document.head.append(script);
      boxes.forEach((box) => box.replaceChildren());
      await draw();
      for (const query of [dark, narrow]) query.addEventListener('change', draw);
      document.documentElement.dataset.charts = 'drawn';
    } catch (error) {
      giveUp(`The charts could not be drawn (${error}). All figures are in the tables.`);
    }
  };

  document.addEventListener('click', async (event) => {
    const button = event.target.closest('[data-copy]');
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = 'Copied';
      setTimeout(() => { button.textContent = 'Copy'; }, 1500);
    } catch {
      // Without a clipboard, select the text, so that a key press copies it.
      window.getSelection().selectAllChildren(button.parentElement.querySelector('code'));
    }
  });

  start();
})();
