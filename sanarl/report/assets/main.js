// ---- the page

function runsTable() {
  const several = data.runs.length > 1;
  return el('ul', { class: 'runs' }, ...data.runs.map((run, r) => {
    const [first, best, last] = run.held_out ?? [];
    const facts = [
      ['held-out reward', first ? (last[0] > first[0] ? `${shown(first[1])} → ${shown(last[1])}` : shown(first[1])) : null],
      ['highest', best && last[0] > first[0] ? `${shown(best[1])} at step ${best[0]}` : null],
      ['time', run.hours ? duration(run.hours) : null],
      ['model', run.model || null],
      ['method', run.task || null],
    ].filter(([, value]) => value);
    return el('li', { class: 'run' },
      el('h2', {}, several ? el('label', {}, el('input', { type: 'checkbox', id: `show-${r}`, checked: !state.hidden.has(r), 'aria-label': `Show ${run.name}`, onchange: (event) => {
        if (event.target.checked) state.hidden.delete(r);
        else state.hidden.add(r);
        drawCharts();
      } }), ' ', el('i', { class: 'dot', style: `background:${colour(r)}` }), ' ', run.name) : run.name,
      el('span', { class: `state ${run.state}` }, run.state_text)),
      el('dl', {}, ...facts.map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value)))),
      run.warnings.length ? el('details', { class: 'notes', id: `warnings-${r}`, open: state.open.has(`warnings-${r}`), ontoggle: (event) => remember(`warnings-${r}`, event) },
        el('summary', {}, `${run.warnings.length} warning${run.warnings.length > 1 ? 's' : ''}; the last: ${run.warnings[run.warnings.length - 1].split(' warning: ')[1]}`),
        el('ul', {}, ...run.warnings.map((line) => el('li', {}, line)))) : null,
      run.notes.length ? el('ul', { class: 'notes' }, ...run.notes.map((note) => el('li', {}, note))) : null);
  }));
}

function chartsSection({ key, title, charts: specs }) {
  const section = el('section', { id: key }, el('h2', {}, title));
  const grid = el('div', { class: 'charts' });
  for (const spec of specs) {
    const chart = new Chart(spec);
    charts.push(chart);
    grid.append(chart.node);
  }
  section.append(key === 'time' ? stages() : '', grid);
  return section;
}

/** Where the seconds of a mean step go, a bar for every run. */
function stages() {
  const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.curves)))].filter((name) => name.startsWith('time/') && name !== 'time/step').sort();
  const rows = data.runs.map((run) => {
    const total = (run.curves['time/step']?.y ?? []).filter((y) => y !== null);
    const count = total.length || 1;
    const sum = (name) => { // the time before the first step belongs to no step
      const curve = run.curves[name];
      return curve ? curve.y.reduce((all, y, i) => all + (curve.x[i] > 0 ? y ?? 0 : 0), 0) / count : 0;
    };
    const parts = names.map((name) => [name.slice(5), sum(name)]).filter(([, seconds]) => seconds > 0);
    const inner = parts.filter(([name]) => ['preview', 'regenerate'].includes(name)).reduce((all, [, seconds]) => all + seconds, 0);
    for (const part of parts) if (part[0] === 'rollout' && inner) part[1] = Math.max(part[1] - inner, 0);
    const whole = total.reduce((all, y) => all + y, 0) / count;
    const rest = whole - parts.reduce((all, [, seconds]) => all + seconds, 0);
    return { run, whole, parts: [...parts, ['other', Math.max(rest, 0)]] };
  }).filter((row) => row.whole > 0);
  if (!rows.length) return '';
  const longest = Math.max(...rows.map((row) => row.whole));
  return el('div', { class: 'stages' }, ...rows.map(({ run, whole, parts }) => el('div', {},
    el('p', {}, data.runs.length > 1 ? `${run.name}: ` : '', el('b', {}, `${shown(whole)} s`), ' a step on average'),
    el('div', { class: 'bar', 'aria-hidden': 'true', style: `width:${(100 * whole) / longest}%` },
      ...parts.map(([, seconds], i) => el('span', { style: `flex:${seconds} 0 0;background:${colour(i)}` }))),
    el('ul', { class: 'legend' }, ...parts.map(([name, seconds], i) => el('li', {}, el('i', { class: 'dot', style: `background:${colour(i)}` }), `${name} `, el('b', {}, `${shown(seconds)} s`), ` ${Math.round((100 * seconds) / whole)} %`))))));
}

function tools() {
  const smooth = el('input', { type: 'range', id: 'smooth', min: 0, max: 0.95, step: 0.05, value: state.smooth, oninput: () => {
    state.smooth = Number(smooth.value);
    drawCharts();
  } });
  return el('p', { class: 'controls', id: 'tools' },
    el('label', {}, 'Smoothing ', smooth),
    el('label', {}, 'Over ', el('select', { id: 'axis', onchange: (event) => {
      state.axis = event.target.value;
      drawCharts();
    } }, el('option', { value: 'step', selected: state.axis === 'step' }, 'steps'), el('option', { value: 'hours', selected: state.axis === 'hours' }, 'time'))),
    data.runs.some((run) => run.shown_steps) ? el('span', { class: 'means' }, 'Long curves are drawn by the lowest and highest of every few steps.') : null);
}

/** Draw one section again in its place. */
function redraw(id, make) {
  const focused = document.activeElement?.id;
  document.getElementById(id).replaceWith(make());
  if (focused) document.getElementById(focused)?.focus();
}

function render() {
  const focused = document.activeElement?.id;
  const scroll = window.scrollY;
  charts.length = 0;
  document.getElementById('runs').replaceChildren(runsTable());
  const plots = data.sections.map((section) => [section.key, chartsSection(section)]);
  const before = plots.filter(([key]) => key === 'reward').map(([, node]) => node);
  const after = plots.filter(([key]) => key !== 'reward').map(([, node]) => node);
  const sections = [...before, samplesSection(), promptsSection(), ...after, configSection(), environmentSection()];
  document.getElementById('main').replaceChildren(plots.length ? tools() : '', ...sections);
  document.getElementById('nav').replaceChildren(...sections.map((section) => el('a', { href: `#${section.id}` }, section.querySelector('h2').textContent)));
  document.getElementById('foot').replaceChildren(`Made ${data.made}. `, document.getElementById('data').dataset.follow ? el('span', { id: 'live', role: 'status' }, 'Following the run.') : '');
  drawCharts();
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  window.scrollTo(0, scroll);
}

/** Look for news of a running job every few seconds; a question that finds none costs nothing. */
function follow(seconds) {
  let tag = null;
  const look = async () => {
    try {
      const answer = await fetch('data.json', { headers: tag ? { 'If-None-Match': tag } : {}, cache: 'no-store' });
      if (answer.status === 200) {
        tag = answer.headers.get('ETag');
        const atEnd = state.gallery.place === null || state.gallery.place === (data.runs[state.gallery.run]?.gallery?.steps.length ?? 0) - 1;
        data = await answer.json();
        if (atEnd) state.gallery.place = null;
        render();
      }
      document.getElementById('live').textContent = 'Following the run.';
    } catch {
      document.getElementById('live').textContent = 'The server is gone; start it again to go on following.';
    }
    setTimeout(look, 1000 * seconds);
  };
  setTimeout(look, 1000 * seconds);
}

render();
let drawnAt = document.documentElement.clientWidth;
new ResizeObserver(() => {
  if (document.documentElement.clientWidth !== drawnAt) {
    drawnAt = document.documentElement.clientWidth;
    drawCharts();
  }
}).observe(document.documentElement);
const seconds = Number(document.getElementById('data').dataset.follow);
if (seconds) follow(seconds);
