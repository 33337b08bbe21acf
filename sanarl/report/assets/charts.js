// ---- plots: drawn into the width there is, read with a pointer or the arrow keys

const charts = [];
const HEIGHT = 210;
const EDGE = { left: 52, right: 12, top: 10, bottom: 26 };

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * unit).find((size) => size >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
    for (const factor of high - low > 3 ? [1] : [1, 2, 5]) {
      const place = Math.log10(factor) + power;
      if (place >= low - 1e-9 && place <= high + 1e-9) found.push(place);
    }
  }
  return found.length > 1 ? found : [low, high];
}

/** Hours at a step, between the points that the page has. */
function hoursAt(run, step) {
  const { x, y } = run.elapsed;
  if (!x.length) return 0;
  const place = placeOf(x, step);
  if (place < 0) return y[0];
  if (place + 1 >= x.length) return y[y.length - 1];
  return y[place] + ((y[place + 1] - y[place]) * (step - x[place])) / (x[place + 1] - x[place]);
}

/** Exponentially weighted mean, corrected at the start; gaps stay gaps. */
function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

class Chart {
  constructor(spec) {
    this.spec = spec;
    this.readout = el('p', { class: 'readout' });
    const name = spec.title || spec.metrics[0];
    this.svg = el('svg:svg', {
      tabindex: '0', role: 'slider', 'aria-label': `${name}, by step`, 'aria-orientation': 'horizontal',
      onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.point(event),
      onpointerdown: (event) => this.point(event),
      onpointerleave: () => setCursor(null),
      onblur: () => setCursor(null),
    });
    const tools = el('span', { class: 'tools' });
    if (spec.log) {
      tools.append(el('button', {
        type: 'button', id: `log-${spec.key}`, 'aria-pressed': state.log.has(spec.key), title: 'Logarithmic scale',
        onclick: (event) => {
          if (!state.log.delete(spec.key)) state.log.add(spec.key);
          event.currentTarget.setAttribute('aria-pressed', state.log.has(spec.key));
          this.draw();
        },
      }, 'log'));
    }
    const values = el('details', { class: 'values', ontoggle: () => values.open && this.table(values) }, el('summary', {}, 'Values'));
    const means = spec.metrics.length === 1 ? data.meanings[spec.metrics[0]] : '';
    this.node = el('figure', { class: 'chart', 'data-chart': spec.key },
      el('figcaption', {}, el('h3', {}, name), tools, means && means !== name ? el('p', { class: 'means' }, means) : null),
      this.readout, this.svg, this.legend(), values);
  }

  /** The curves of visible runs: {run, metric, x, y, colour, dash}. */
  curves() {
    const found = [];
    const several = data.runs.length > 1;
    data.runs.forEach((run, r) => {
      if (state.hidden.has(r)) return;
      this.spec.metrics.forEach((metric, m) => {
        const curve = run.curves[metric];
        if (curve) found.push({ run, r, metric, ...curve, colour: colour(several ? r : m), dash: dash(several ? m : 0) });
      });
    });
    return found;
  }

  legend() {
    const { metrics, bands } = this.spec;
    const several = data.runs.length > 1;
    const rows = [];
    if (metrics.length > 1) {
      metrics.forEach((metric, m) => rows.push(el('li', { title: data.meanings[metric] },
        el('svg:svg', { class: 'key', viewBox: '0 0 24 8', 'aria-hidden': 'true' },
          el('svg:line', { x1: 0, x2: 24, y1: 4, y2: 4, style: `stroke:${several ? 'var(--soft)' : colour(m)}`, 'stroke-dasharray': dash(several ? m : 0) })),
        metric)));
    }
    const there = bands.filter((band) => data.runs.some((run) => run.band[band]) && !(several && band === 'samples'));
    there.forEach((band) => rows.push(el('li', {}, el('span', { class: `band ${band}`, style: `background:${colour(0)}`, 'aria-hidden': 'true' }), data.bands[band])));
    return el('ul', { class: 'legend' }, ...rows);
  }

  table(details) {
    if (details.childElementCount > 1) return;
    const curves = this.curves();
    const steps = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    const at = curves.map((curve) => new Map(curve.x.map((x, i) => [x, curve.y[i]])));
    const name = (curve) => (data.runs.length > 1 ? `${curve.run.name} ${curve.metric}` : curve.metric);
    details.append(el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Values' }, el('table', {},
      el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'step'), ...curves.map((curve) => el('th', { scope: 'col' }, name(curve))))),
      el('tbody', {}, ...steps.map((step) => el('tr', {}, el('th', { scope: 'row' }, String(step)),
        ...at.map((map) => el('td', {}, map.has(step) ? shown(map.get(step)) : ''))))))));
  }

  place(run, step) {
    return state.axis === 'hours' ? hoursAt(run, step) : step;
  }

  draw() {
    const width = Math.max(this.node.clientWidth - 24, 200);
    const curves = this.curves();
    const log = state.log.has(this.spec.key);
    const scale = (value) => (value === null || (log && value <= 0) ? null : log ? Math.log10(value) : value);
    const bands = [];
    const strong = data.runs.length - state.hidden.size === 1;
    data.runs.forEach((run, r) => {
      if (state.hidden.has(r)) return;
      this.spec.bands.forEach((name) => {
        if (run.band[name] && (strong || name !== 'samples')) bands.push({ run, name, ...run.band[name], colour: colour(data.runs.length > 1 ? r : 0) });
      });
    });
    const xs = curves.flatMap((curve) => [curve.x[0], curve.x[curve.x.length - 1]].map((x) => this.place(curve.run, x)));
    const ys = [...curves.flatMap((curve) => curve.y), ...bands.flatMap((band) => [...band.lo, ...band.hi])].map(scale).filter((y) => y !== null);
    this.svg.replaceChildren();
    this.svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
    if (!ys.length) {
      this.svg.append(el('svg:text', { x: width / 2, y: HEIGHT / 2, 'text-anchor': 'middle', class: 'tick' }, 'no finite value'));
      return;
    }
    let [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), ys[0], ys[0]];
    for (const y of ys) {
      y0 = Math.min(y0, y);
      y1 = Math.max(y1, y);
    }
    if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
    if (y0 === y1) [y0, y1] = log ? [y0 - 0.5, y1 + 0.5] : y0 === 0 ? [0, 1] : [Math.min(2 * y0, 0), Math.max(2 * y1, 0)];
    const room = y1 - y0;
    [y0, y1] = y0 >= 0 && y0 - 0.06 * room < 0 && !log ? [0, y1 + 0.06 * room] : [y0 - 0.06 * room, y1 + 0.06 * room];
    const px = (x) => EDGE.left + ((x - x0) / (x1 - x0)) * (width - EDGE.left - EDGE.right);
    const py = (y) => HEIGHT - EDGE.bottom - ((y - y0) / (y1 - y0)) * (HEIGHT - EDGE.top - EDGE.bottom);
    Object.assign(this, { width, px, py, scale, x0, x1, drawn: curves });
    Object.assign(this.svg.dataset, { x0, x1, y0, y1, left: EDGE.left, right: width - EDGE.right, top: EDGE.top, bottom: HEIGHT - EDGE.bottom });
    this.axes(log, y0, y1);
    for (const band of bands) this.band(band);
    for (const curve of curves) this.curve(curve);
    this.overlay = el('svg:g', { class: 'cursor' });
    this.svg.append(this.overlay);
    this.steps = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    this.svg.setAttribute('aria-valuemin', this.steps[0]);
    this.svg.setAttribute('aria-valuemax', this.steps[this.steps.length - 1]);
    this.cursor();
  }

  axes(log, y0, y1) {
    const { px, py, width } = this;
    for (const y of log ? logTicks(y0, y1) : ticks(y0, y1, 5)) {
      this.svg.append(el('svg:line', { class: 'grid', x1: EDGE.left, x2: width - EDGE.right, y1: py(y), y2: py(y) }),
        el('svg:text', { class: 'tick', x: EDGE.left - 6, y: py(y) + 4, 'text-anchor': 'end' }, shown(log ? Number((10 ** y).toPrecision(3)) : y)));
    }
    const hours = state.axis === 'hours';
    const factor = hours && this.x1 < 2 ? 60 : 1;
    const marks = ticks(this.x0 * factor, this.x1 * factor, Math.max(Math.floor(width / 70), 3));
    for (const x of marks) {
      this.svg.append(el('svg:text', { class: 'tick', x: px(x / factor), y: HEIGHT - 8, 'text-anchor': 'middle' },
        hours ? `${shown(x)}${factor === 60 ? ' min' : ' h'}` : shown(x)));
    }
  }

  band({ run, name, x, lo, hi, colour: fill }) {
    const point = (step, value) => `${this.px(this.place(run, step)).toFixed(1)},${this.py(this.scale(value) ?? this.scale(hi[0]) ?? 0).toFixed(1)}`;
    const there = x.map((_, i) => i).filter((i) => this.scale(lo[i]) !== null && this.scale(hi[i]) !== null);
    const points = [...there.map((i) => point(x[i], hi[i])), ...there.reverse().map((i) => point(x[i], lo[i]))];
    this.svg.append(el('svg:polygon', { class: `band ${name}`, points: points.join(' '), style: `fill:${fill}` }));
  }

  curve(curve) {
    const { run, metric, x, y, colour: stroke, dash: pattern } = curve;
    const path = (values) => {
      let text = '';
      let pen = false;
      values.forEach((value, i) => {
        const height = this.scale(value);
        if (height === null) {
          pen = false;
          return;
        }
        text += `${pen ? 'L' : 'M'}${this.px(this.place(run, x[i])).toFixed(2)} ${this.py(height).toFixed(2)}`;
        pen = true;
      });
      return text;
    };
    const faint = state.smooth > 0 && !this.spec.marks;
    this.svg.append(el('svg:path', { class: faint ? 'line faint' : 'line', d: path(y), style: `stroke:${stroke}`, 'stroke-dasharray': pattern, 'data-run': run.name, 'data-metric': metric }));
    if (faint) this.svg.append(el('svg:path', { class: 'line', d: path(smoothed(y, state.smooth)), style: `stroke:${stroke}`, 'stroke-dasharray': pattern }));
    const alone = y.map((value, i) => value !== null && (i === 0 || y[i - 1] === null) && (i + 1 === y.length || y[i + 1] === null));
    const best = metric === 'eval/reward' && run.held_out ? run.held_out[1][0] : null;
    y.forEach((value, i) => {
      const height = this.scale(value);
      if (height === null || !(alone[i] || (this.spec.marks && y.length <= 60) || x[i] === best)) return;
      this.svg.append(el('svg:circle', { class: x[i] === best ? 'mark best' : 'mark', cx: this.px(this.place(run, x[i])), cy: this.py(height), r: x[i] === best ? 5 : 2.6, style: `fill:${stroke};stroke:${stroke}` },
        x[i] === best ? el('svg:title', {}, `highest: ${shown(value)} at step ${x[i]}`) : null));
    });
  }

  point(event) {
    if (!this.steps) return;
    const box = this.svg.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * this.width;
    let best = null;
    for (const curve of this.drawn) {
      const places = curve.x.map((step) => this.px(this.place(curve.run, step)));
      const i = nearest(places, wanted);
      if (best === null || Math.abs(places[i] - wanted) < best.away) best = { away: Math.abs(places[i] - wanted), step: curve.x[i] };
    }
    if (best) setCursor(best.step);
  }

  key(event) {
    if (!this.steps) return;
    const last = this.steps.length - 1;
    const now = state.cursor === null ? (event.key === 'ArrowLeft' ? last + 1 : -1) : nearest(this.steps, state.cursor);
    const jump = Math.max(Math.round(last / 10), 1);
    const moves = { ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1, PageUp: now + jump, PageDown: now - jump, Home: 0, End: last };
    if (event.key === 'Escape') setCursor(null);
    else if (event.key in moves) setCursor(this.steps[Math.min(Math.max(moves[event.key], 0), last)]);
    else return;
    event.preventDefault();
  }

  /** Show the values at the cursor's step, and each curve's last ones where there is no cursor. */
  cursor() {
    if (!this.overlay) return;
    this.overlay.replaceChildren();
    const step = state.cursor;
    const several = data.runs.length > 1;
    const found = [];
    for (const curve of this.drawn) {
      const i = step === null ? curve.x.length - 1 : nearest(curve.x, step);
      if (step !== null && (step < curve.x[0] || step > curve.x[curve.x.length - 1])) continue;
      found.push({ curve, step: curve.x[i], value: shown(curve.y[i]) });
      const height = this.scale(curve.y[i]);
      if (step !== null && height !== null) {
        const x = this.px(this.place(curve.run, curve.x[i]));
        this.overlay.append(el('svg:line', { x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }), el('svg:circle', { cx: x, cy: this.py(height), r: 4, style: `fill:${curve.colour}` }));
      }
    }
    this.say(found, several);
  }

  /** The values above the plot: by metric, by run, or a line of metrics for every run. */
  say(found, several) {
    const at = found.length ? Math.max(...found.map((one) => one.step)) : null;
    const many = this.spec.metrics.length > 1;
    const own = (one) => (one.step === at ? null : el('small', {}, ` at ${one.step}`));
    const entry = (one, name, ink) => el('span', {}, ink ? el('i', { class: 'dot', style: `background:${ink}` }) : null, name ? el('span', { class: 'name', title: name }, name) : '', name ? ' ' : '', el('b', {}, one.value), own(one));
    let parts;
    if (several && many) {
      const short = (metric) => metric.slice(metric.lastIndexOf('/') + 1);
      parts = data.runs.filter((run) => found.some((one) => one.curve.run === run)).map((run) => {
        const mine = found.filter((one) => one.curve.run === run);
        return el('span', { class: 'of-run' }, el('i', { class: 'dot', style: `background:${mine[0].curve.colour}` }), el('span', { class: 'name', title: run.name }, run.name), ...mine.map((one) => entry(one, short(one.curve.metric))));
      });
    } else parts = found.map((one) => entry(one, many ? one.curve.metric : several ? one.curve.run.name : '', many || several ? one.curve.colour : null));
    this.readout.replaceChildren(el('span', { class: 'step' }, at === null ? 'no value here' : `step ${at}`), ...parts);
    this.svg.setAttribute('aria-valuenow', at ?? 0);
    this.svg.setAttribute('aria-valuetext', `step ${at}: ${found.map((one) => `${several ? `${one.curve.run.name} ` : ''}${many ? `${one.curve.metric} ` : ''}${one.value}`).join(', ')}`);
  }
}

function setCursor(step) {
  state.cursor = step;
  for (const chart of charts) chart.cursor();
}

function drawCharts() {
  for (const chart of charts) chart.draw();
}
