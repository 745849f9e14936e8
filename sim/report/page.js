'use strict';
const data = JSON.parse(document.getElementById('data').textContent);

// Numbers as people read them.
function scaled(value, units, base) {
  let unit = 0;
  while (unit + 1 < units.length && value >= base) { value /= base; unit += 1; }
  return `${value >= 100 || value === 0 ? value.toFixed(0) : value.toPrecision(3)} ${units[unit]}`;
}
const bytes = (n) => scaled(n, ['B', 'kB', 'MB', 'GB', 'TB', 'PB'], 1000);
const memory = (n) => scaled(n, ['B', 'KiB', 'MiB', 'GiB', 'TiB'], 1024);
const percent = (x) => `${(100 * x).toFixed(1)} %`;
function time(s) {
  if (s === 0) return '0 s';
  if (s < 1e-3) return `${(s * 1e6).toPrecision(4)} µs`;
  return s < 1 ? `${(s * 1e3).toPrecision(4)} ms` : `${s.toPrecision(4)} s`;
}

const select = (id) => d3.select(`#${id} .figure`);
const tip = document.getElementById('tip');
function showTip(text, x, y) {
  tip.textContent = text;
  tip.classList.add('shown');
  tip.style.left = `${Math.min(x + 12, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(y + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
}
function hideTip() { tip.classList.remove('shown'); }

function colours() {
  const style = getComputedStyle(document.documentElement);
  return d3.interpolateRgb(style.getPropertyValue('--low').trim(), style.getPropertyValue('--high').trim());
}

// A table from rows of cells; a cell is text, or {bar: part} for a bar.
function table(parent, header, rows, scroll) {
  const box = scroll ? parent.append('div').attr('class', 'scroll').attr('tabindex', 0).attr('role', 'region').attr('aria-label', header[0]) : parent;
  const element = box.append('table');
  element.append('thead').append('tr').selectAll('th').data(header).join('th').attr('scope', 'col').text((h) => h);
  const lines = element.append('tbody').selectAll('tr').data(rows).join('tr').attr('class', (row) => row.kind || null);
  lines.selectAll('td').data((row) => row.cells).join('td').each(function (cell) {
    if (cell !== null && typeof cell === 'object') {
      d3.select(this).attr('class', cell.why === undefined ? 'bar' : 'why');
      if (cell.why === undefined) d3.select(this).append('div').style('width', `${Math.max(0.5, 100 * Math.min(1, cell.bar))}%`);
      else d3.select(this).text(cell.why);
    } else {
      d3.select(this).text(cell);
    }
  });
}

// A heat map on a canvas, with axes, a tip under the pointer, and a cursor that arrow keys move.
// part(row, column) in [0, 1]; say(row, column) describes a cell.
function heatMap(parent, name, rows, columns, part, say, left, xAxis, yLabels) {
  const wide = Math.min(1000, Math.max(320, document.body.clientWidth - 40)) - left - 10;
  const cellWidth = Math.max(1, Math.min(22, wide / columns));
  const cellHeight = Math.max(1, Math.min(xAxis.square ? cellWidth : 14, 620 / rows));
  const width = Math.round(cellWidth * columns), height = Math.round(cellHeight * rows);
  const legend = parent.append('div').attr('class', 'legend');
  legend.append('span').text(xAxis.low);
  legend.append('i');
  legend.append('span').text(xAxis.high);
  const svg = parent.append('svg').attr('width', left + width + 10).attr('height', height + 34).attr('role', 'group').attr('aria-label', name);
  const holder = svg.append('foreignObject').attr('x', left).attr('y', 4).attr('width', width).attr('height', height);
  const canvas = holder.append('xhtml:canvas').attr('width', width).attr('height', height)
    .attr('tabindex', 0).attr('role', 'img').attr('aria-label', `${name}; arrow keys read the cells`).node();
  const cursor = svg.append('rect').attr('fill', 'none').attr('stroke', 'var(--second)').attr('stroke-width', 2).attr('visibility', 'hidden');
  svg.append('g').attr('transform', `translate(${left},${height + 6})`).call(xAxis.draw(width));
  const step = Math.ceil(rows / Math.max(1, Math.floor(height / 13)));
  yLabels.forEach((label, row) => {
    if (row % step === 0) svg.append('text').attr('x', left - 6).attr('y', 4 + (row + 0.5) * height / rows).attr('dy', '.35em').attr('text-anchor', 'end').text(label);
  });
  function paint() {
    const colour = colours(), context = canvas.getContext('2d');
    for (let row = 0; row < rows; row += 1) {
      const top = Math.floor(row * height / rows), bottom = Math.max(top + 1, Math.floor((row + 1) * height / rows));
      for (let column = 0; column < columns; column += 1) {
        const begin = Math.floor(column * width / columns), end = Math.max(begin + 1, Math.floor((column + 1) * width / columns));
        context.fillStyle = colour(part(row, column));
        context.fillRect(begin, top, end - begin, bottom - top);
      }
    }
  }
  paint();
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', paint);
  let at = [0, 0];
  function move(row, column, x, y) {
    at = [Math.max(0, Math.min(rows - 1, row)), Math.max(0, Math.min(columns - 1, column))];
    cursor.attr('visibility', 'visible').attr('x', left + at[1] * width / columns).attr('y', 4 + at[0] * height / rows)
      .attr('width', Math.max(3, width / columns)).attr('height', Math.max(3, height / rows));
    const box = canvas.getBoundingClientRect();
    showTip(say(at[0], at[1]), x === undefined ? box.left + at[1] * width / columns : x, y === undefined ? box.top + at[0] * height / rows : y);
  }
  function leave() { cursor.attr('visibility', 'hidden'); hideTip(); }
  canvas.addEventListener('pointermove', (event) => move(Math.floor(event.offsetY / height * rows), Math.floor(event.offsetX / width * columns), event.clientX, event.clientY));
  canvas.addEventListener('pointerleave', leave);
  canvas.addEventListener('focus', () => { if (canvas.matches(':focus-visible')) move(at[0], at[1]); });
  canvas.addEventListener('blur', leave);
  canvas.addEventListener('keydown', (event) => {
    const way = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -columns], End: [0, columns], PageUp: [-10, 0], PageDown: [10, 0] }[event.key];
    if (event.key === 'Escape') leave();
    if (!way) return;
    event.preventDefault();
    move(at[0] + way[0], at[1] + way[1]);
  });
}

function timeline(id, heat) {
  const parts = Uint8Array.from(atob(heat.parts), (c) => c.charCodeAt(0));
  const rows = heat.rows.length;
  if (rows === 0) { select(id).append('p').text('Nothing moves.'); return; }
  const axis = { low: '0', high: '100 %', draw: (width) => d3.axisBottom(d3.scaleLinear().domain([0, data.predicted_s * 1e3]).range([0, width])).ticks(8).tickFormat((t) => `${t} ms`) };
  const span = data.predicted_s / heat.columns;
  heatMap(select(id), d3.select(`#${id} h2`).text(), rows, heat.columns, (row, column) => parts[row * heat.columns + column] / 255,
    (row, column) => `${heat.rows[row]}, ${time(column * span)} to ${time((column + 1) * span)}: ${percent(parts[row * heat.columns + column] / 255)}`, 150, axis, heat.rows);
}

function answer() {
  const ratio = data.lower_bound_s > 0 ? data.predicted_s / data.lower_bound_s : null;
  document.title = `Refit of ${data.model}: ${time(data.predicted_s)}`;
  d3.select('#title').text(`${data.model}: ${data.train} → ${data.gen}`);
  d3.select('#subtitle').text(`${data.ranks} ranks, ${data.tensors} tensors; ${data.fabric} with ${data.nodes} nodes, ${data.gpus} GPUs in ${data.domains} NVLink domains, ${data.rails} rails; cost model ${data.cost}; strategy ${data.strategy}`);
  const facts = [['predicted', time(data.predicted_s)], ['lower bound', time(data.lower_bound_s)], ['ratio', ratio ? ratio.toFixed(3) : '-'],
    ['between NVLink domains', bytes(data.totals.inter)], ['inside', bytes(data.totals.intra)], ['transfers', d3.format(',')(data.totals.transfers)],
    ['staging at most', memory(data.totals.staging)], ['plan file', bytes(data.plan_bytes)]];
  const boxes = d3.select('#answer').selectAll('div').data(facts).join('div');
  boxes.append('dt').text((fact) => fact[0]);
  boxes.append('dd').text((fact) => fact[1]);
  const split = Object.entries(data.split).map(([name, seconds]) => `${time(seconds)} ${name}`).join(', ');
  d3.select('#verdict').text(`What binds: ${data.bound_reason || 'nothing has to move'}. The rank that ends last spends ${split}.`);
  d3.select('nav').selectAll('a').data(Array.from(document.querySelectorAll('section'))).join('a').attr('href', (s) => `#${s.id}`).text((s) => s.querySelector('h2').textContent);
}

function compare() {
  const own = { strategy: data.strategy, predicted_s: data.predicted_s, error: '', transfers: data.totals.transfers, inter: data.totals.inter, intra: data.totals.intra, own: true };
  const rows = [own, ...data.others.filter((row) => row.strategy !== data.strategy)];
  const longest = d3.max(rows, (row) => row.predicted_s || 0) || 1;
  rows.sort((a, b) => (a.predicted_s === null) - (b.predicted_s === null) || a.predicted_s - b.predicted_s);
  table(select('compare'), ['strategy', 'predicted', 'x bound', '', 'between domains', 'inside', 'transfers'], rows.map((row) => ({
    kind: row.own ? 'own' : null,
    cells: row.predicted_s === null ? [row.strategy, '-', '-', { why: row.error }, '-', '-', '-']
      : [row.strategy, time(row.predicted_s), data.lower_bound_s > 0 ? (row.predicted_s / data.lower_bound_s).toFixed(3) : '-', { bar: row.predicted_s / longest }, bytes(row.inter), bytes(row.intra), d3.format(',')(row.transfers)],
  })));
  if (data.others.length === 0) select('compare').append('p').text('No other strategy was asked for (refit report --strategies).');
}

function links() {
  const rows = data.loads.map(([name, kind, amount, use]) => ({ cells: [name, kind, bytes(amount), percent(use), { bar: use }] }));
  table(select('links'), ['link', 'kind', 'bytes', 'use', ''], rows, true);
  if (data.loaded_links > data.loads.length) select('links').append('p').text(`${data.loads.length} of ${data.loaded_links} links.`);
}

function traffic() {
  const { names, sides, bytes: matrix } = data.traffic, n = names.length, most = d3.max(matrix) || 1;
  const axis = { square: true, low: '0', high: bytes(most), draw: (width) => d3.axisBottom(d3.scalePoint().domain(names).range([width / n / 2, width - width / n / 2])).tickValues(names.filter((_, i) => i % Math.ceil(n / Math.max(1, width / 60)) === 0)) };
  heatMap(select('traffic'), 'Traffic between nodes', n, n, (row, column) => matrix[row * n + column] / most,
    (row, column) => `${names[row]} (${sides[row]}) to ${names[column]} (${sides[column]}): ${bytes(matrix[row * n + column])}`, 90, axis, names);
}

function stagingMemory() {
  const { bound, rows } = data.memory, most = Math.max(1, d3.max(rows, (row) => row[1] + row[2]) || 1);
  select('memory').append('p').text(`Bound per rank: ${memory(bound)}. Slots hold relayed data, packing what is not contiguous.`);
  const sorted = rows.slice().sort((a, b) => b[1] + b[2] - a[1] - a[2] || a[0] - b[0]);
  table(select('memory'), ['rank', 'slots', 'packing', 'steps', ''], sorted.map(([rank, slots, packing, steps]) => ({ cells: [`rank ${rank}`, memory(slots), memory(packing), steps, { bar: (slots + packing) / most }] })), true);
}

function run() {
  const plan = data.path, ranks = data.ranks;
  select('run').append('pre').text([
    `refit check ${plan}`,
    `refit simulate ${plan}`,
    `refit-exec ${plan} --backend host --verify        # all ranks in one process`,
    `mpirun -np ${ranks} refit-exec ${plan} --backend mpi --verify`,
    `srun --ntasks=${ranks} --gpus-per-task=1 refit-exec ${plan} --backend nccl --verify`].join('\n'));
  d3.select('#footer').text(`refit ${data.version}; plan ${data.digest}`);
}

answer();
compare();
links();
traffic();
timeline('link-time', data.link_timeline);
timeline('rank-time', data.rank_timeline);
stagingMemory();
run();
