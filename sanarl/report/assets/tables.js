// ---- rewards of single prompts, configurations, environment

const COLUMNS = [['text', 'Prompt'], ['first', 'First'], ['last', 'Last'], ['change', 'Change'], ['curve', 'Over the steps']];

function sparkline({ x, y }) {
  if (y.length < 2) return el('span', { class: 'means' }, 'once');
  const [low, high] = [Math.min(...y), Math.max(...y)];
  const point = (value, i) => `${(2 + (96 * (x[i] - x[0])) / (x[x.length - 1] - x[0] || 1)).toFixed(1)},${(18 - (16 * (value - low)) / (high - low || 1)).toFixed(1)}`;
  return el('svg:svg', { class: 'spark', viewBox: '0 0 100 20', role: 'img', 'aria-label': `from ${shown(low)} to ${shown(high)}` },
    el('svg:polyline', { points: y.map(point).join(' ') }));
}

function promptsSection() {
  const chosen = state.prompts;
  const section = el('section', { id: 'prompts' }, el('h2', {}, 'Rewards of single prompts'));
  const runs = data.runs.map((_, r) => r).filter((r) => data.runs[r].prompts.eval.count + data.runs[r].prompts.train.count);
  if (!runs.length) {
    section.append(el('p', {}, 'No rewards of single prompts were recorded.'));
    return section;
  }
  if (!runs.includes(chosen.run)) chosen.run = runs[0];
  const { prompts } = data.runs[chosen.run];
  if (!prompts[chosen.of].count) chosen.of = chosen.of === 'eval' ? 'train' : 'eval';
  const { rows, count } = prompts[chosen.of];
  const body = el('tbody');
  const heads = COLUMNS.map(([key, title]) => el('th', { scope: 'col' }, key === 'curve' ? title : el('button', {
    type: 'button', id: `sort-${key}`, onclick: () => {
      chosen.down = chosen.sort === key ? !chosen.down : key !== 'text';
      chosen.sort = key;
      fill();
    },
  }, title)));
  const fill = () => {
    const wanted = chosen.filter.trim().toLowerCase();
    const value = (row) => ({ text: row.text, first: row.y[0], last: row.y[row.y.length - 1], change: row.y[row.y.length - 1] - row.y[0] })[chosen.sort];
    const order = (a, b) => (chosen.sort === 'text' ? a.text.localeCompare(b.text) : value(a) - value(b)) * (chosen.down ? -1 : 1);
    const left = rows.filter((row) => row.text.toLowerCase().includes(wanted)).sort(order);
    heads.forEach((head, i) => {
      if (COLUMNS[i][0] === chosen.sort) head.setAttribute('aria-sort', chosen.down ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    body.replaceChildren(...left.map((row) => {
      const [first, last] = [row.y[0], row.y[row.y.length - 1]];
      return el('tr', {}, el('th', { scope: 'row' }, row.text), el('td', {}, shown(first)), el('td', {}, shown(last)),
        el('td', { class: last > first ? 'up' : last < first ? 'down' : '' }, `${last > first ? '+' : ''}${shown(last - first)}`), el('td', {}, sparkline(row)));
    }));
    if (!left.length) body.append(el('tr', {}, el('td', { colspan: COLUMNS.length }, 'no prompt holds these letters')));
  };
  const again = () => redraw('prompts', promptsSection);
  section.append(el('p', { class: 'controls' },
    runChoice('prompts', runs, chosen.run, (r) => {
      chosen.run = r;
      again();
    }),
    el('label', {}, 'Of ', el('select', { id: 'prompts-of', onchange: (event) => {
      chosen.of = event.target.value;
      again();
    } }, ...[['eval', 'held-out prompts'], ['train', 'rollouts']].filter(([of]) => prompts[of].count).map(([of, text]) => el('option', { value: of, selected: of === chosen.of }, text)))),
    el('label', {}, 'Holding ', el('input', { type: 'search', id: 'prompts-filter', value: chosen.filter, oninput: (event) => {
      chosen.filter = event.target.value;
      fill();
    } }))),
  el('p', { class: 'means' }, count > rows.length ? `${rows.length} of ${count} prompts: those that rose most and those that fell most.` : `${count} prompts; means over their samples.`),
  el('div', { class: 'scroll tall', tabindex: '0', role: 'region', 'aria-label': 'Rewards of single prompts' }, el('table', { class: 'prompts' }, el('thead', {}, el('tr', {}, ...heads)), body)));
  fill();
  return section;
}

function comparison(rows, label) {
  return el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label }, el('table', { class: 'keys' },
    el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'Key'), ...data.runs.map((run) => el('th', { scope: 'col' }, run.name)))),
    el('tbody', {}, ...rows.map((row) => el('tr', {}, el('th', { scope: 'row' }, row.name), ...row.values.map((value) => el('td', {}, value)))))));
}

function configSection() {
  const rows = data.config.rows;
  const section = el('section', { id: 'config' }, el('h2', {}, 'Configuration'));
  if (!rows.length) {
    section.append(el('p', {}, 'No config.json could be read.'));
    return section;
  }
  if (data.runs.length > 1) {
    const differing = rows.filter((row) => row.differs);
    section.append(el('h3', {}, 'What differs'), differing.length ? comparison(differing, 'Keys that differ') : el('p', {}, 'Nothing: these runs have the same configuration.'));
  }
  section.append(el('details', { id: 'all-keys', open: state.open.has('all-keys'), ontoggle: (event) => remember('all-keys', event) },
    el('summary', {}, `All ${rows.length} keys`), comparison(rows, 'All keys')));
  return section;
}

function environmentSection() {
  const rows = data.environment.rows;
  const section = el('section', { id: 'environment' }, el('h2', {}, 'Environment'),
    rows.length ? comparison(rows, 'Environment') : el('p', {}, 'events.jsonl, where a run notes its machine, is not there.'));
  data.runs.forEach((run, r) => {
    if (run.log.length) {
      section.append(el('details', { id: `log-of-${r}`, open: state.open.has(`log-of-${r}`), ontoggle: (event) => remember(`log-of-${r}`, event) },
        el('summary', {}, data.runs.length > 1 ? `Last lines of ${run.name}/log.txt` : 'Last lines of log.txt'),
        el('pre', { class: 'scroll', tabindex: '0' }, run.log.join('\n'))));
    }
  });
  return section;
}
